#include "device/cuda/cublas_linear.h"

#include <bit>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>

#include <cublasLt.h>

namespace lockstep::device::cuda {
namespace {

constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw std::runtime_error(std::string(what) + ": cuBLASLt says status " + std::to_string(static_cast<int>(status)));
  }
}

template <class T, cublasStatus_t (*kDestroy)(T)>
struct Destroy {
  using pointer = T;
  void operator()(T object) const { kDestroy(object); }
};
template <class T, cublasStatus_t (*kDestroy)(T)>
using Owned = std::unique_ptr<std::remove_pointer_t<T>, Destroy<T, kDestroy>>;
using Handle = Owned<cublasLtHandle_t, cublasLtDestroy>;
using Product = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

/// What the choice of an algorithm depends on.
struct Shape {
  cudaDataType type;
  std::size_t rows, columns, tokens;                            // of the product: [tokens, rows] over `columns`
  std::size_t weight_stride, in_stride, out_stride;             // elements
  std::uint32_t weight_alignment, in_alignment, out_alignment;  // bytes
  bool bias;
  auto key() const {
    return std::tie(type, rows, columns, tokens, weight_stride, in_stride, out_stride, weight_alignment, in_alignment, out_alignment, bias);
  }
  bool operator<(const Shape& other) const { return key() < other.key(); }
};

struct Plan {
  Product product;
  Layout weight, in, out;
  cublasLtMatmulAlgo_t algorithm{};
};

std::uint32_t alignment_of(const void* address) {
  const int zeros = std::countr_zero(reinterpret_cast<std::uintptr_t>(address));
  return zeros < 8 ? 1u << zeros : 256u;
}

template <class T>
void set(const Product& product, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  check(cublasLtMatmulDescSetAttribute(product.get(), attribute, &value, sizeof value), "describing a matrix product");
}

template <class T>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value), "describing a matrix product");
}

Layout make_layout(cudaDataType type, std::size_t rows, std::size_t columns, std::size_t stride) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, type, rows, columns, static_cast<std::int64_t>(stride)), "describing a matrix");
  return Layout(layout);
}

/// In the column-major terms of cuBLAS: out [rows x tokens] = weight [columns x rows]^T in [columns x tokens].
Plan make_plan(cublasLtHandle_t handle, const Shape& shape) {
  Plan plan;
  cublasLtMatmulDesc_t product = nullptr;
  check(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a matrix product");
  plan.product.reset(product);
  set(plan.product, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  if (shape.bias) set(plan.product, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
  plan.weight = make_layout(shape.type, shape.columns, shape.rows, shape.weight_stride);
  plan.in = make_layout(shape.type, shape.columns, shape.tokens, shape.in_stride);
  plan.out = make_layout(CUDA_R_32F, shape.rows, shape.tokens, shape.out_stride);

  cublasLtMatmulPreference_t made = nullptr;
  check(cublasLtMatmulPreferenceCreate(&made), "describing a matrix product");
  const Preference preference(made);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, shape.weight_alignment);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, shape.in_alignment);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, shape.out_alignment);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, shape.out_alignment);
  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  check(cublasLtMatmulAlgoGetHeuristic(handle, plan.product.get(), plan.weight.get(), plan.in.get(), plan.out.get(), plan.out.get(),
                                       preference.get(), 1, &result, &found),
        "choosing an algorithm for a matrix product");
  if (found == 0) {
    throw std::runtime_error("cuBLASLt has no algorithm for a product of " + std::to_string(shape.rows) + " x " +
                             std::to_string(shape.columns) + " weights with " + std::to_string(shape.tokens) + " tokens");
  }
  plan.algorithm = result.algo;
  return plan;
}

void require(bool holds, const CudaWeight& weight, const char* what) {
  if (!holds) throw std::invalid_argument("fast linear with weight '" + weight.spec().name + "': " + what);
}

}  // namespace

struct CublasLinear::Impl {
  Handle handle;
  DeviceMemory workspace;
  std::map<Shape, Plan> plans;

  const Plan& plan_for(const Shape& shape) {
    auto found = plans.find(shape);
    if (found == plans.end()) found = plans.emplace(shape, make_plan(handle.get(), shape)).first;
    return found->second;
  }
};

CublasLinear::CublasLinear() : impl_(std::make_unique<Impl>()) {
  cublasLtHandle_t handle = nullptr;
  check(cublasLtCreate(&handle), "starting cuBLASLt");
  impl_->handle.reset(handle);
  impl_->workspace = DeviceMemory(kWorkspaceBytes, "the workspace of cuBLASLt");
}

CublasLinear::~CublasLinear() = default;

std::size_t CublasLinear::num_shapes() const { return impl_->plans.size(); }

void CublasLinear::linear(const Launch& launch, Rows in, std::size_t num_rows, const CudaWeight& weight, const float* bias, Rows out,
                          std::size_t out_column) {
  const WeightSpec& spec = weight.spec();
  require(weight.plain() != nullptr || spec.rows == 0, weight, "its rows were not kept as they are");
  require(in.type == activation_for(spec.dtype) && in.columns == spec.columns, weight, "the activations do not fit");
  require(out.type == Activation::kFloat32 && out_column + spec.rows <= out.columns, weight, "no room for its rows in the output");
  require(bias == nullptr || weight.plan().num_roots == 1, weight, "a bias needs a single root");
  if (num_rows == 0 || spec.rows == 0) return;
  const std::size_t stride = row_stride(in.type, spec.columns);
  std::size_t begin = 0, root = 0;
  for (const Leaf& leaf : spec.leaves) {
    if (!leaf.ends_root) continue;
    const auto* from = static_cast<const std::uint16_t*>(weight.plain()) + begin;
    const auto* x = static_cast<const std::uint16_t*>(in.data) + begin;
    float* to = static_cast<float*>(out.data) + root * num_rows * out.stride + out_column;
    const Shape shape{spec.dtype == DType::kF16 ? CUDA_R_16F : CUDA_R_16BF,
                      spec.rows,
                      leaf.end - begin,
                      num_rows,
                      stride,
                      in.stride,
                      out.stride,
                      alignment_of(from),
                      alignment_of(x),
                      alignment_of(to),
                      bias != nullptr};
    const Plan& plan = impl_->plan_for(shape);
    if (bias != nullptr) set(plan.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    const float one = 1.0f, zero = 0.0f;
    check(cublasLtMatmul(impl_->handle.get(), plan.product.get(), &one, from, plan.weight.get(), x, plan.in.get(), &zero, to,
                         plan.out.get(), to, plan.out.get(), &plan.algorithm, impl_->workspace.data(), kWorkspaceBytes, launch.stream),
          "launching a matrix product of cuBLASLt");
    begin = leaf.end;
    ++root;
  }
}

}  // namespace lockstep::device::cuda
