#include "launcher/device_choice.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <vector>

#include <dlfcn.h>
#include <fmt/format.h>

#include "launcher/options.h"

namespace lockstep::launcher {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPluginFile = "liblockstep_cuda.so";

bool nvidia_device_present() {
  std::error_code error;
  return fs::exists("/dev/nvidiactl", error) || fs::exists("/proc/driver/nvidia/version", error);
}

/// Where the plug-in may be: installed, or in the tree that the program was built in.
std::vector<fs::path> plugin_paths(const RunConfig& config) {
  if (!config.cuda_plugin.empty()) return {config.cuda_plugin};
  std::error_code error;
  const fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  return {folder / ".." / "lib" / "lockstep" / kPluginFile, folder / kPluginFile, folder / ".." / kPluginFile};
}

const comm::CudaPlugin* load_plugin(const RunConfig& config, std::string& problem) {
  const std::vector<fs::path> paths = plugin_paths(config);
  const auto found = std::find_if(paths.begin(), paths.end(), [](const fs::path& path) {
    std::error_code error;
    return fs::exists(path, error);
  });
  if (found == paths.end()) {
    problem =
        fmt::format("the CUDA plug-in is not there ({}); docs/install.md says how to build it", paths.front().lexically_normal().string());
    return nullptr;
  }
  void* library = dlopen(found->c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    problem = fmt::format("the CUDA plug-in can not be loaded: {}", dlerror());
    return nullptr;
  }
  using Entry = const comm::CudaPlugin* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(library, comm::kCudaPluginSymbol));
  const comm::CudaPlugin* plugin = entry != nullptr ? entry() : nullptr;
  if (plugin == nullptr || plugin->interface_version != comm::kCudaPluginInterface) {
    problem = fmt::format("the CUDA plug-in {} is of another build than this program", found->lexically_normal().string());
    return nullptr;
  }
  return plugin;
}

/// What a rank tells the others.
struct Report {
  std::int32_t present = 0;
  std::int32_t usable = 0;
  char problem[256] = {};
};

std::vector<Report> exchange(comm::Communicator& communicator, const GpuFinding& finding) {
  Report mine{.present = finding.present ? 1 : 0, .usable = finding.usable};
  std::memcpy(mine.problem, finding.problem.data(), std::min(finding.problem.size(), sizeof mine.problem - 1));
  std::vector<Report> all(static_cast<std::size_t>(communicator.size()));
  const std::vector<std::size_t> bytes(all.size(), sizeof mine);
  communicator.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)), bytes);
  return all;
}

}  // namespace

GpuFinding find_gpus(const RunConfig& config) {
  GpuFinding finding;
  if (config.device == "cpu") return finding;
  finding.present = nvidia_device_present() || !config.cuda_plugin.empty();
  if (config.device == "auto" && !finding.present) return finding;
  finding.plugin = load_plugin(config, finding.problem);
  if (finding.plugin != nullptr) finding.usable = finding.plugin->count_devices(finding.problem);
  return finding;
}

bool agree_on_gpus(const RunConfig& config, const GpuFinding& finding, comm::Communicator& communicator) {
  if (config.device == "cpu") return false;
  const std::vector<Report> all = exchange(communicator, finding);
  const auto none = std::find_if(all.begin(), all.end(), [](const Report& report) { return report.usable == 0; });
  if (none == all.end()) return true;
  const auto rank = none - all.begin();
  if (config.device == "cuda") throw UsageError(fmt::format("--device cuda: rank {} has no usable GPU: {}", rank, none->problem));
  const auto broken = std::find_if(all.begin(), all.end(), [](const Report& report) { return report.present != 0 && report.usable == 0; });
  if (broken != all.end()) {
    throw UsageError(fmt::format("rank {} is on a machine with an NVIDIA device that can not be used: {}; --device cpu runs without it",
                                 broken - all.begin(), broken->problem));
  }
  const auto some = std::find_if(all.begin(), all.end(), [](const Report& report) { return report.usable > 0; });
  if (some == all.end()) return false;
  throw UsageError(fmt::format("rank {} has a GPU, rank {} has none: all ranks must run on the same kind of device (--device cpu)",
                               some - all.begin(), rank));
}

}  // namespace lockstep::launcher
