#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include "simt/executor.h"

/// Names of kernels, from the symbol tables of the program and its libraries: the dynamic ones lack what is not exported.
namespace simt {

namespace {

struct Image {
  std::uintptr_t base = 0;
  std::map<std::uintptr_t, std::string> functions;
};

template <class T>
const T* at(const std::vector<char>& file, std::size_t offset, std::size_t count = 1) {
  return offset + count * sizeof(T) <= file.size() ? reinterpret_cast<const T*>(file.data() + offset) : nullptr;
}

std::map<std::uintptr_t, std::string> functions_of(const std::string& path) {
  std::map<std::uintptr_t, std::string> functions;
  std::ifstream stream(path, std::ios::binary);
  const std::vector<char> file((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  const auto* header = at<ElfW(Ehdr)>(file, 0);
  if (header == nullptr || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return functions;
  const auto* sections = at<ElfW(Shdr)>(file, header->e_shoff, header->e_shnum);
  if (sections == nullptr) return functions;
  for (std::size_t i = 0; i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    const std::size_t count = sections[i].sh_size / sizeof(ElfW(Sym));
    const auto* symbols = at<ElfW(Sym)>(file, sections[i].sh_offset, count);
    const std::size_t names = sections[sections[i].sh_link].sh_offset;
    for (std::size_t s = 0; symbols != nullptr && s < count; ++s) {
      if ((symbols[s].st_info & 15) == STT_FUNC && symbols[s].st_value != 0)
        functions[symbols[s].st_value] = &file[names + symbols[s].st_name];
    }
  }
  return functions;
}

const Image& image_at(const Dl_info& info) {
  thread_local std::map<std::string, Image> images;
  const auto [found, is_new] = images.try_emplace(info.dli_fname);
  if (is_new) {
    // dladdr names the program as it was called; its file is certain.
    const bool is_program = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD) == nullptr;
    found->second.functions = functions_of(is_program ? "/proc/self/exe" : info.dli_fname);
    const auto* header = static_cast<const ElfW(Ehdr)*>(info.dli_fbase);
    found->second.base = header->e_type == ET_DYN ? reinterpret_cast<std::uintptr_t>(info.dli_fbase) : 0;
  }
  return found->second;
}

}  // namespace

std::string function_name(const void* address) {
  Dl_info info{};
  std::string name = "?";
  if (dladdr(address, &info) == 0) return name;
  const Image& image = image_at(info);
  const auto symbol = image.functions.find(reinterpret_cast<std::uintptr_t>(address) - image.base);
  if (symbol != image.functions.end()) {
    name = symbol->second;
  } else if (info.dli_sname != nullptr) {
    name = info.dli_sname;
  }
  int status = 0;
  char* demangled = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  if (demangled != nullptr) name = demangled;
  std::free(demangled);
  for (const std::string_view anonymous = "(anonymous namespace)::"; name.find(anonymous) != std::string::npos;) {
    name.erase(name.find(anonymous), anonymous.size());
  }
  name = name.substr(0, name.find('('));
  if (name.starts_with("void ")) name.erase(0, 5);
  return name;
}

}  // namespace simt
