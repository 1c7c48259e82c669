// gpu_make_model FILE: a model with random bf16 weights and the layers of Llama-3-8B, eight of them: 3.5 GB, far more than caches hold.

#include <cstdio>
#include <exception>

#include "tests/support/tiny_model.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: gpu_make_model FILE\n", stderr);
    return 2;
  }
  try {
    lockstep::test::write_tiny_gguf(
        argv[1], lockstep::device::DType::kBF16,
        {.num_layers = 8, .hidden = 4096, .num_heads = 32, .num_kv_heads = 8, .feed_forward = 14336, .context = 4096});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_make_model: %s\n", error.what());
    return 1;
  }
  return 0;
}
