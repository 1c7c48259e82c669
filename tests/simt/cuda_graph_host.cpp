#include <algorithm>

#include "simt/runtime.h"

/// Capture of streams into graphs, and their replay.
namespace simt {

namespace {

/// One replay. Any order that the dependencies allow; nodes that wait for others let their siblings go on.
class GraphRun final : public Operation {
 public:
  explicit GraphRun(std::shared_ptr<const std::vector<Node>> nodes)
      : nodes_(std::move(nodes)), needs_left_(nodes_->size()), needed_by_(nodes_->size()), running_(nodes_->size()) {
    for (std::size_t i = 0; i < nodes_->size(); ++i) {
      needs_left_[i] = (*nodes_)[i].needs.size();
      for (const std::size_t need : (*nodes_)[i].needs) needed_by_[need].push_back(i);
      if (needs_left_[i] == 0) ready_.push_back(i);
    }
  }

  Progress advance() override {
    while (!ready_.empty()) {
      bool moved = false;
      for (const std::size_t node : in_order()) {
        auto& operation = running_[node];
        if (operation == nullptr) operation = (*nodes_)[node].make();
        const Progress progress = operation->advance();
        if (progress == Progress::kFailed) {
          error_ = operation->error();
          return progress;
        }
        if (progress == Progress::kDone) {
          finish(node);
          moved = true;
          break;
        }
      }
      if (!moved) return Progress::kBlocked;
    }
    return Progress::kDone;
  }

  std::string describe() const override {
    std::string text = "a graph";
    for (const std::size_t node : ready_) text += ", " + (running_[node] == nullptr ? "a node" : running_[node]->describe());
    return text;
  }

  std::uint64_t progress_made() const override {
    std::uint64_t made = finished_;
    for (const std::size_t node : ready_) made += running_[node] == nullptr ? 0 : running_[node]->progress_made();
    return made;
  }

 private:
  std::vector<std::size_t> in_order() const {
    std::vector<std::size_t> order = ready_;
    std::sort(order.begin(), order.end());
    if (config().graph_order == GraphOrder::kRandom) {
      for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[context().random() % i]);
    }
    return order;
  }

  void finish(std::size_t node) {
    running_[node] = nullptr;
    std::erase(ready_, node);
    finished_ += 1'000'000;  // more than a node counts by itself
    for (const std::size_t next : needed_by_[node]) {
      if (--needs_left_[next] == 0) ready_.push_back(next);
    }
  }

  std::shared_ptr<const std::vector<Node>> nodes_;
  std::vector<std::size_t> needs_left_;
  std::vector<std::vector<std::size_t>> needed_by_;
  std::vector<std::unique_ptr<Operation>> running_;
  std::vector<std::size_t> ready_;
  std::uint64_t finished_ = 0;
};

/// Whether all nodes come before those that the stream's end needs.
bool all_joined(const Capture& capture, const std::vector<std::size_t>& last) {
  std::vector<bool> seen(capture.nodes.size());
  std::vector<std::size_t> rest = last;
  while (!rest.empty()) {
    const std::size_t node = rest.back();
    rest.pop_back();
    if (seen[node]) continue;
    seen[node] = true;
    rest.insert(rest.end(), capture.nodes[node].needs.begin(), capture.nodes[node].needs.end());
  }
  return std::find(seen.begin(), seen.end(), false) == seen.end();
}

}  // namespace

std::unique_ptr<Operation> make_graph_run(std::shared_ptr<const std::vector<Node>> nodes) {
  return std::make_unique<GraphRun>(std::move(nodes));
}

}  // namespace simt

using namespace simt;  // what follows implements C functions of CUDA

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  SIMT_MAY_FAIL(cudaStreamBeginCapture, cudaErrorStreamCaptureUnsupported);
  if (stream == nullptr) return note(cudaErrorStreamCaptureUnsupported, "capture of the default stream");
  if (stream->capture != nullptr) return note(cudaErrorIllegalState);
  stream->capture = std::make_shared<Capture>();
  stream->capture->mode = mode;
  stream->began_capture = true;
  stream->last_nodes.clear();
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  SIMT_MAY_FAIL(cudaStreamEndCapture, cudaErrorStreamCaptureInvalidated);
  *graph = nullptr;
  if (stream->capture == nullptr || !stream->began_capture) return note(cudaErrorIllegalState);
  const std::shared_ptr<Capture> capture = stream->capture;
  const bool joined = all_joined(*capture, stream->last_nodes);
  const std::lock_guard lock(stream->context->mutex);
  for (CUstream_st* other : stream->context->streams) {
    if (other->capture != capture) continue;
    other->capture = nullptr;
    other->began_capture = false;
    other->last_nodes.clear();
  }
  if (capture->invalid != cudaSuccess) return note(cudaErrorStreamCaptureInvalidated, "the capture was broken by a call that it forbids");
  if (!joined) return note(cudaErrorStreamCaptureUnjoined, "a stream that joined the capture was not joined back");
  *graph = new CUgraph_st{std::move(capture->nodes)};
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = stream == nullptr || stream->capture == nullptr ? cudaStreamCaptureStatusNone
            : stream->capture->invalid != cudaSuccess       ? cudaStreamCaptureStatusInvalidated
                                                            : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  SIMT_MAY_FAIL(cudaGraphInstantiate, cudaErrorMemoryAllocation);
  *executable = new CUgraphExec_st{std::make_shared<const std::vector<Node>>(graph->nodes)};
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiate(executable, graph, flags);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  if (nodes != nullptr) return note(cudaErrorNotSupported, "nodes of graphs are counted, not given");
  *count = graph->nodes.size();
  return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;  // a replay that is under way keeps the nodes
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  SIMT_MAY_FAIL(cudaGraphLaunch, cudaErrorLaunchFailure);
  ++live_counters().graph_launches;
  return enqueue(stream, "a graph", [nodes = executable->nodes] { return make_graph_run(nodes); });
}

}  // extern "C"
