#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <utility>

#include <cuda_runtime.h>

#include "device/device.h"

namespace lockstep::device::cuda {

/// Decode steps that are recorded as graphs, one for each number of rows, and replayed. @throws CudaError
class RecordedSteps {
 public:
  /// The rows that the recording of such a step has; what `batch` lacks are pads. 0: a step that is not recorded.
  static std::size_t rows_for(const StepBatch& batch, const StepLimits& limits);

  /// The step of `num_rows` rows: the first of its size runs as it is, so that what is made at first use is there when the second is
  /// recorded.
  void run(std::size_t num_rows, cudaStream_t stream, const std::function<void()>& walk);
  /// Destroys the recordings.
  void forget();
  /// Likewise, and the next step of every size is a first one again.
  void clear() { graphs_.clear(); }

 private:
  /// Empty after the first step of its size.
  class Graph {
   public:
    Graph() = default;
    explicit Graph(cudaGraphExec_t graph) : graph_(graph) {}
    Graph(Graph&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)) {}
    Graph& operator=(Graph&& other) noexcept {
      std::swap(graph_, other.graph_);
      return *this;
    }
    ~Graph() {
      if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
    }
    cudaGraphExec_t get() const { return graph_; }

   private:
    cudaGraphExec_t graph_ = nullptr;
  };
  static Graph record(cudaStream_t stream, const std::function<void()>& walk);

  std::map<std::size_t, Graph> graphs_;  // by rows
};

}  // namespace lockstep::device::cuda
