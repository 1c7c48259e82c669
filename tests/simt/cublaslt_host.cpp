#include <cstring>
#include <vector>

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <fmt/format.h>

#include "simt/runtime.h"

/// The part of cuBLASLt that the backend uses: D = alpha op(A) op(B) + beta C (+ bias), column-major, 16-bit or fp32 operands, fp32 sums.
/// An algorithm that the heuristic gives holds for the alignments that it was asked for, and refuses others, as the library does.
using namespace simt;  // what follows implements C functions of cuBLASLt

namespace {

struct MatrixLayout {
  cudaDataType type;
  std::uint64_t rows;
  std::uint64_t columns;
  std::int64_t stride;  // elements from one column to the next
};

struct Product {
  cublasComputeType_t compute;
  cudaDataType scale;
  cublasOperation_t transpose_a = CUBLAS_OP_N;
  cublasOperation_t transpose_b = CUBLAS_OP_N;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
};

struct Preference {
  std::uint64_t workspace_bytes = 0;
  std::uint32_t alignment[4] = {256, 256, 256, 256};  // of A, B, C, D
};

/// What an algorithm is good for; kept in the opaque cublasLtMatmulAlgo_t.
struct Algorithm {
  std::uint64_t rows, columns, depth;
  std::uint64_t workspace_bytes;
  std::uint32_t alignment[4];
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

template <class T, class Opaque>
T& real(Opaque* opaque) {
  return *reinterpret_cast<T*>(opaque);
}

template <class T>
cublasStatus_t set(T& value, const void* bytes, std::size_t size) {
  if (size != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&value, bytes, size);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t refuse(cublasStatus_t status, const std::string& text) {
  note(cudaErrorInvalidValue, "cuBLASLt: " + text);
  cudaGetLastError();  // cuBLASLt has its own results
  return status;
}

std::size_t bytes_of(cudaDataType type) { return type == CUDA_R_32F ? 4 : 2; }

bool is_known(cudaDataType type) { return type == CUDA_R_32F || type == CUDA_R_16F || type == CUDA_R_16BF; }

std::size_t bytes_of(const MatrixLayout& layout) {
  if (layout.rows == 0 || layout.columns == 0) return 0;
  return ((layout.columns - 1) * static_cast<std::uint64_t>(layout.stride) + layout.rows) * bytes_of(layout.type);
}

float load(const char* at, cudaDataType type) {
  if (type == CUDA_R_32F) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  if (type == CUDA_R_16BF) return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16);
  return __half2float(__half(__half_raw{bits}));
}

/// The matrix in fp32, each of its columns, or rows if `transposed`, in one piece. Copied column by column with the C library's memcpy,
/// which sanitizers see.
std::vector<float> expand(const void* data, const MatrixLayout& layout, bool transposed) {
  std::vector<float> values(layout.rows * layout.columns);
  const std::size_t size = bytes_of(layout.type);
  std::vector<char> column(layout.rows * size);
  for (std::uint64_t j = 0; j < layout.columns; ++j) {
    std::memcpy(column.data(), static_cast<const char*>(data) + j * static_cast<std::uint64_t>(layout.stride) * size, column.size());
    for (std::uint64_t i = 0; i < layout.rows; ++i) {
      values[transposed ? i * layout.columns + j : j * layout.rows + i] = load(column.data() + i * size, layout.type);
    }
  }
  return values;
}

/// In another order than a plain loop: a GPU has its own.
float dot(const float* a, const float* b, std::size_t count) {
  constexpr std::size_t kLanes = 16;
  float sums[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  float sum = 0;
  for (const float lane : sums) sum += lane;
  for (; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

void store(char* at, cudaDataType type, float value) {
  if (type == CUDA_R_32F) {
    std::memcpy(at, &value, sizeof(value));
  } else if (type == CUDA_R_16F) {
    const __half half = __float2half_rn(value);
    std::memcpy(at, &half, sizeof(half));
  } else {
    const __nv_bfloat16 half = __float2bfloat16_rn(value);
    std::memcpy(at, &half, sizeof(half));
  }
}

struct Operands {
  Product product;
  float alpha, beta;
  MatrixLayout a, b, c, d;
  const void *a_data, *b_data, *c_data;
  void* d_data;
};

std::string multiply(const Operands& operands) {
  const auto& [product, alpha, beta, a, b, c, d, a_data, b_data, c_data, d_data] = operands;
  ++live_counters().matmuls;
  const std::uint64_t rows = d.rows, columns = d.columns;
  const std::uint64_t depth = product.transpose_a == CUBLAS_OP_N ? a.columns : a.rows;
  const std::vector<float> left = expand(a_data, a, product.transpose_a == CUBLAS_OP_N);
  const std::vector<float> right = expand(b_data, b, product.transpose_b != CUBLAS_OP_N);
  const std::vector<float> before = beta != 0 ? expand(c_data, c, false) : std::vector<float>{};
  std::vector<float> bias;
  if (product.epilogue == CUBLASLT_EPILOGUE_BIAS) {
    bias = expand(product.bias, {d.type, rows, 1, static_cast<std::int64_t>(rows)}, false);
  }
  const std::size_t size = bytes_of(d.type);
  std::vector<char> column(rows * size);
  for (std::uint64_t j = 0; j < columns; ++j) {
    for (std::uint64_t i = 0; i < rows; ++i) {
      float value = alpha * dot(&left[i * depth], &right[j * depth], depth);
      if (beta != 0) value += beta * before[j * rows + i];
      if (!bias.empty()) value += bias[i];
      store(column.data() + i * size, d.type, value);
    }
    std::memcpy(static_cast<char*>(d_data) + j * static_cast<std::uint64_t>(d.stride) * size, column.data(), column.size());
  }
  return {};
}

/// Empty: they fit.
std::string misfit(const Product& product, const MatrixLayout& a, const MatrixLayout& b, const MatrixLayout& c, const MatrixLayout& d) {
  const bool plain_a = product.transpose_a == CUBLAS_OP_N, plain_b = product.transpose_b == CUBLAS_OP_N;
  const std::uint64_t m = plain_a ? a.rows : a.columns, k = plain_a ? a.columns : a.rows;
  const std::uint64_t n = plain_b ? b.columns : b.rows;
  if (m != d.rows || n != d.columns || k != (plain_b ? b.rows : b.columns) || c.rows != d.rows || c.columns != d.columns) {
    return fmt::format("{} x {} by {} x {} does not give {} x {}", a.rows, a.columns, b.rows, b.columns, d.rows, d.columns);
  }
  for (const MatrixLayout* layout : {&a, &b, &c, &d}) {
    if (layout->stride < static_cast<std::int64_t>(layout->rows)) return "columns overlap";
    if (!is_known(layout->type)) return fmt::format("data type {}", static_cast<int>(layout->type));
  }
  if (a.type != b.type || c.type != d.type || (d.type != CUDA_R_32F && d.type != a.type)) return "these types do not go together";
  if (product.compute != CUBLAS_COMPUTE_32F || product.scale != CUDA_R_32F) return "sums in another type than fp32";
  if (product.epilogue != CUBLASLT_EPILOGUE_DEFAULT && product.epilogue != CUBLASLT_EPILOGUE_BIAS) return "this epilogue";
  return {};
}

std::string misplaced(const Operands& operands, const Algorithm& algorithm) {
  const void* data[4] = {operands.a_data, operands.b_data, operands.c_data, operands.d_data};
  const MatrixLayout* layouts[4] = {&operands.a, &operands.b, &operands.c, &operands.d};
  if (algorithm.rows != operands.d.rows || algorithm.columns != operands.d.columns) return "the algorithm was chosen for another shape";
  for (int i = 0; i < 4; ++i) {
    if (!is_device_range(data[i], bytes_of(*layouts[i]))) return fmt::format("matrix {} leaves its memory", "ABCD"[i]);
    if (reinterpret_cast<std::uintptr_t>(data[i]) % algorithm.alignment[i] != 0) {
      return fmt::format("matrix {} is not aligned to the {} bytes that its algorithm was chosen for", "ABCD"[i], algorithm.alignment[i]);
    }
  }
  const bool has_bias = operands.product.epilogue == CUBLASLT_EPILOGUE_BIAS;
  if (has_bias && !is_device_range(operands.product.bias, operands.d.rows * bytes_of(operands.d.type))) return "the bias leaves its memory";
  return {};
}

}  // namespace

struct cublasLtContext {};

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (injected_failure("cublasLtCreate", 1) != 0) return refuse(CUBLAS_STATUS_NOT_INITIALIZED, "cublasLtCreate fails on order");
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
std::size_t cublasLtGetVersion() { return CUBLAS_VERSION; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* product, cublasComputeType_t compute, cudaDataType_t scale) {
  *product = reinterpret_cast<cublasLtMatmulDesc_t>(new Product{compute, scale});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
  delete &real<Product>(product);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t opaque, cublasLtMatmulDescAttributes_t attribute, const void* bytes,
                                              std::size_t size) {
  auto& product = real<Product>(opaque);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return set(product.transpose_a, bytes, size);
    case CUBLASLT_MATMUL_DESC_TRANSB: return set(product.transpose_b, bytes, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return set(product.epilogue, bytes, size);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return set(product.bias, bytes, size);
    default: return refuse(CUBLAS_STATUS_NOT_SUPPORTED, fmt::format("attribute {} of a product", static_cast<int>(attribute)));
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, std::uint64_t rows, std::uint64_t columns,
                                          std::int64_t stride) {
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(new MatrixLayout{type, rows, columns, stride});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete &real<MatrixLayout>(layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete &real<Preference>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t opaque, cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* bytes, std::size_t size) {
  auto& preference = real<Preference>(opaque);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return set(preference.workspace_bytes, bytes, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return set(preference.alignment[0], bytes, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return set(preference.alignment[1], bytes, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return set(preference.alignment[2], bytes, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return set(preference.alignment[3], bytes, size);
    default: return refuse(CUBLAS_STATUS_NOT_SUPPORTED, fmt::format("preference {}", static_cast<int>(attribute)));
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t opaque, int wanted, cublasLtMatmulHeuristicResult_t* results,
                                              int* found) {
  *found = 0;
  if (injected_failure("cublasLtMatmulAlgoGetHeuristic", 1) != 0)
    return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "the heuristic fails on order");
  const std::string wrong =
      misfit(real<Product>(product), real<MatrixLayout>(a), real<MatrixLayout>(b), real<MatrixLayout>(c), real<MatrixLayout>(d));
  if (!wrong.empty()) return refuse(CUBLAS_STATUS_INVALID_VALUE, wrong);
  if (wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
  const auto& preference = real<Preference>(opaque);
  const auto& out = real<MatrixLayout>(d);
  Algorithm algorithm{out.rows, out.columns, 0, std::min<std::uint64_t>(preference.workspace_bytes, 4096), {}};
  std::memcpy(algorithm.alignment, preference.alignment, sizeof(algorithm.alignment));
  results[0] = {};
  std::memcpy(&results[0].algo, &algorithm, sizeof(algorithm));
  results[0].workspaceSize = algorithm.workspace_bytes;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t product, const void* alpha, const void* a_data,
                              cublasLtMatrixLayout_t a, const void* b_data, cublasLtMatrixLayout_t b, const void* beta, const void* c_data,
                              cublasLtMatrixLayout_t c, void* d_data, cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t* chosen,
                              void* workspace, std::size_t workspace_bytes, cudaStream_t stream) {
  if (injected_failure("cublasLtMatmul", 1) != 0) return refuse(CUBLAS_STATUS_EXECUTION_FAILED, "cublasLtMatmul fails on order");
  const Operands operands{real<Product>(product),
                          *static_cast<const float*>(alpha),
                          *static_cast<const float*>(beta),
                          real<MatrixLayout>(a),
                          real<MatrixLayout>(b),
                          real<MatrixLayout>(c),
                          real<MatrixLayout>(d),
                          a_data,
                          b_data,
                          c_data,
                          d_data};
  std::string wrong = misfit(operands.product, operands.a, operands.b, operands.c, operands.d);
  Algorithm algorithm{operands.d.rows, operands.d.columns, 0, 0, {1, 1, 1, 1}};
  if (chosen != nullptr) std::memcpy(&algorithm, chosen, sizeof(algorithm));
  if (wrong.empty()) wrong = misplaced(operands, algorithm);
  if (wrong.empty() && algorithm.workspace_bytes > 0 &&
      (workspace_bytes < algorithm.workspace_bytes || !is_device_range(workspace, workspace_bytes))) {
    wrong = "the workspace is too small, or not in device memory";
  }
  if (!wrong.empty()) return refuse(CUBLAS_STATUS_INVALID_VALUE, wrong);
  const std::string what = fmt::format("a product of {} x {} values", operands.d.rows, operands.d.columns);
  const cudaError_t code = enqueue(stream, "cublasLtMatmul", call_operation(what, [operands] { return multiply(operands); }));
  return code == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
