#include "device/cuda/error.h"
#include "device/cuda/kernels/rows.cuh"
#include "device/cuda/kernels/top.cuh"
#include "device/cuda/row_launch.h"
#include "device/cuda/rows.h"

namespace lockstep::device::cuda {
namespace {

dim3 grid_of(std::size_t num_rows, std::size_t columns) {
  return dim3(static_cast<unsigned>(num_rows), static_cast<unsigned>((columns + kRowStep - 1) / kRowStep));
}

void launch_norm(const Launch& where, const Norm& norm, const NormArguments& arguments, std::size_t num_rows, const Rows& out) {
  dispatch_norm(norm.kind, out.type, [&]<Norm::Kind kKind>(auto* element) {
    using Element = std::remove_pointer_t<decltype(element)>;
    check(launch(norm_rows<kKind, Element>, dim3(static_cast<unsigned>(num_rows)), dim3(kRowThreads), 0, where.stream, arguments,
                 mutable_rows<Element>(out)),
          "launching norm_rows");
  });
}

/// `up` follows `gate` in each row of `from`, or there is none.
template <Nonlinearity kFunction>
void launch_activate(const Launch& where, const Gating& gating, const Rows& from, bool has_up, std::size_t num_rows, const Rows& out) {
  const auto columns = static_cast<unsigned>(out.columns);
  const bool aligned = is_aligned(from) && columns % 4 == 0 && is_aligned(out);
  dispatch(out.type, [&](auto* element) {
    using Element = std::remove_pointer_t<decltype(element)>;
    check(launch(activate_rows<kFunction, Element>, grid_of(num_rows, columns), dim3(kRowThreads), 0, where.stream, const_rows(from),
                 has_up, gating.limit, gating.up_offset, columns, aligned, mutable_rows<Element>(out)),
          "launching activate_rows");
  });
}

void launch_activate(const Launch& where, const Gating& gating, const Rows& from, bool has_up, std::size_t num_rows, const Rows& out) {
  if (num_rows == 0 || out.columns == 0) return;
  switch (gating.function) {
    case Nonlinearity::kSilu: return launch_activate<Nonlinearity::kSilu>(where, gating, from, has_up, num_rows, out);
    case Nonlinearity::kGelu: return launch_activate<Nonlinearity::kGelu>(where, gating, from, has_up, num_rows, out);
    case Nonlinearity::kGeluTanh: return launch_activate<Nonlinearity::kGeluTanh>(where, gating, from, has_up, num_rows, out);
    case Nonlinearity::kRelu: return launch_activate<Nonlinearity::kRelu>(where, gating, from, has_up, num_rows, out);
    case Nonlinearity::kGeluQuick: return launch_activate<Nonlinearity::kGeluQuick>(where, gating, from, has_up, num_rows, out);
  }
}

void launch_copy(const Launch& where, const Rows& from, const std::uint32_t* rows, std::size_t num_rows, const Rows& out) {
  const auto columns = static_cast<unsigned>(out.columns);
  dispatch(out.type, [&](auto* element) {
    using Element = std::remove_pointer_t<decltype(element)>;
    check(launch(copy_rows<Element>, grid_of(num_rows, columns), dim3(kRowThreads), 0, where.stream, const_rows(from), rows, columns,
                 is_aligned(from) && is_aligned(out), mutable_rows<Element>(out)),
          "launching copy_rows");
  });
}

}  // namespace

void norm(const Launch& where, Rows x, std::size_t num_rows, const Norm& norm, Rows out) {
  if (num_rows == 0) return;
  launch_norm(where, norm, norm_arguments(x, nullptr, nullptr, norm, out), num_rows, out);
}

void add(const Launch& where, Rows x, Rows delta, std::size_t num_rows, const float* bias) {
  if (num_rows == 0 || x.columns == 0) return;
  const bool aligned = is_aligned(x) && is_aligned(delta) && is_aligned(bias);
  check(launch(add_rows<float>, grid_of(num_rows, x.columns), dim3(kRowThreads), 0, where.stream, mutable_rows<float>(x), const_rows(delta),
               bias, static_cast<unsigned>(x.columns), aligned),
        "launching add_rows");
}

void add_norm(const Launch& where, Rows x, Rows delta, std::size_t num_rows, const float* bias, const Norm& norm, Rows out) {
  if (num_rows == 0) return;
  launch_norm(where, norm, norm_arguments(x, &delta, bias, norm, out), num_rows, out);
}

void gated(const Launch& where, const Gating& gating, Rows gate_up, std::size_t num_rows, Rows out) {
  launch_activate(where, gating, gate_up, true, num_rows, out);
}

void activate(const Launch& where, Nonlinearity function, Rows x, std::size_t num_rows, Rows out) {
  launch_activate(where, {function}, x, false, num_rows, out);
}

void convert(const Launch& where, Rows x, std::size_t num_rows, Rows out) {
  if (num_rows == 0 || out.columns == 0) return;
  launch_copy(where, x, nullptr, num_rows, out);
}

void gather_rows(const Launch& where, Rows from, const std::uint32_t* rows, std::size_t num_rows, Rows out) {
  if (num_rows == 0 || out.columns == 0) return;
  launch_copy(where, from, rows, num_rows, out);
}

void top_of_rows(const Launch& where, Rows logits, std::size_t num_rows, Top* tops) {
  if (num_rows == 0) return;
  check(launch(tops_of_rows<float>, dim3(static_cast<unsigned>(num_rows)), dim3(kTopThreads), 0, where.stream, const_rows(logits),
               static_cast<unsigned>(logits.columns), is_aligned(logits), tops),
        "launching tops_of_rows");
}

}  // namespace lockstep::device::cuda
