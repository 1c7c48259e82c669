// What scripts/step-instructions.py counts the instructions of: decode steps of a small model, on one thread.
//   decode_steps --compiler     the compiler that made it: counts of two compilers can not be compared
//   decode_steps TYPE           as many steps as kSteps says, within counted_steps()
#include <cstdio>
#include <exception>
#include <string>

#include "tests/support/session_run.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace {

constexpr std::uint32_t kWarm = 4, kSteps = 16;

#define LOCKSTEP_TEXT_OF(x) #x
#define LOCKSTEP_TEXT(x) LOCKSTEP_TEXT_OF(x)
#if defined(__clang__)
constexpr const char* kCompiler =
    "clang-" LOCKSTEP_TEXT(__clang_major__) "." LOCKSTEP_TEXT(__clang_minor__) "." LOCKSTEP_TEXT(__clang_patchlevel__);
#else
constexpr const char* kCompiler = "gcc-" LOCKSTEP_TEXT(__GNUC__) "." LOCKSTEP_TEXT(__GNUC_MINOR__) "." LOCKSTEP_TEXT(__GNUC_PATCHLEVEL__);
#endif

}  // namespace

/// Callgrind counts what happens in here: the name is told to it.
extern "C" __attribute__((noinline)) void counted_steps(lockstep::engine::Engine* engine) {
  for (std::uint32_t i = 0; i < kSteps; ++i) engine->step();
}

int main(int argc, char** argv) {
  using namespace lockstep;
  try {
    const std::string argument = argc == 2 ? argv[1] : "";
    if (argument == "--compiler") {
      std::printf("%s %u\n", kCompiler, kSteps);
      return 0;
    }
    const auto dtype = device::dtype_from_name(argument);
    if (!dtype) throw std::runtime_error("one argument is needed: --compiler, or a type");
    const test::TemporaryFolder folder;
    const auto path = folder.path() / "model.gguf";
    test::write_tiny_gguf(path, *dtype);
    test::RunSetup setup = test::exact_setup(path, 1);
    setup.session.dtype.reset();
    setup.session.kv_dtype = device::DType::kF16;
    setup.isa = device::isa_from_name("avx2");
    test::with_session(setup, [](engine::Session& session) {
      engine::Request request;
      request.prompt = {5, 6, 7, 8};
      request.sampling.temperature = 0.0f;
      request.sampling.ignore_eos = true;
      request.sampling.max_tokens = kWarm + kSteps + 1;
      session.engine().submit(std::move(request), [](engine::Completion&&) {});
      for (std::uint32_t i = 0; i < kWarm; ++i) session.engine().step();
      counted_steps(&session.engine());
      while (session.engine().step()) {
      }
    });
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "decode_steps: %s\n", error.what());
    return 1;
  }
}
