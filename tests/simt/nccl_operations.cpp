#include <algorithm>
#include <cstring>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <fmt/format.h>

#include "simt/nccl_group.h"
#include "simt/sanitizers.h"

namespace simt::nccl {

namespace {

constexpr std::array kKindNames = {"ncclAllReduce", "ncclAllGather", "ncclReduceScatter", "ncclBroadcast",
                                   "ncclReduce",    "ncclSend",      "ncclRecv"};

struct TypeName {
  ncclDataType_t type;
  const char* name;
  std::size_t bytes;
};
constexpr std::array kTypes = {
    TypeName{ncclInt8, "int8", 1},         TypeName{ncclUint8, "uint8", 1},     TypeName{ncclInt32, "int32", 4},
    TypeName{ncclUint32, "uint32", 4},     TypeName{ncclInt64, "int64", 8},     TypeName{ncclUint64, "uint64", 8},
    TypeName{ncclFloat16, "float16", 2},   TypeName{ncclFloat32, "float32", 4}, TypeName{ncclFloat64, "float64", 8},
    TypeName{ncclBfloat16, "bfloat16", 2},
};

const TypeName& type_name(ncclDataType_t type) {
  static constexpr TypeName unknown{ncclInt8, "an unknown type", 1};
  const auto* found = std::find_if(kTypes.begin(), kTypes.end(), [=](const TypeName& entry) { return entry.type == type; });
  return found != kTypes.end() ? *found : unknown;
}

float widen(float value) { return value; }
float widen(__half value) { return __half2float(value); }
float widen(__nv_bfloat16 value) { return __bfloat162float(value); }
template <class T>
T widen(T value) {
  return value;
}

template <class T, class Wide>
T narrow(Wide value) {
  if constexpr (std::is_same_v<T, __half>) return __float2half_rn(value);
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return __float2bfloat16_rn(value);
  if constexpr (std::is_arithmetic_v<T>) return static_cast<T>(value);
}

/// The order of additions is NCCL's own business: here it begins at another rank every few elements.
template <class T>
void reduce(const std::vector<const char*>& inputs, std::size_t first, std::size_t count, int reduction, char* out) {
  using Wide = decltype(widen(T{}));
  const std::size_t size = inputs.size();
  for (std::size_t i = 0; i < count; ++i) {
    Wide sum{};
    for (std::size_t step = 0; step < size; ++step) {
      T in;
      std::memcpy(&in, inputs[((first + i) / 64 + step) % size] + (first + i) * sizeof(T), sizeof(T));
      const Wide value = widen(in);
      if (step == 0) {
        sum = value;
      } else if (reduction == ncclProd) {
        sum = static_cast<Wide>(sum * value);
      } else if (reduction == ncclMax) {
        sum = std::max(sum, value);
      } else if (reduction == ncclMin) {
        sum = std::min(sum, value);
      } else {
        sum = static_cast<Wide>(sum + value);
      }
    }
    if (reduction == ncclAvg) sum = static_cast<Wide>(sum / static_cast<Wide>(size));
    const T result = narrow<T>(sum);
    std::memcpy(out + i * sizeof(T), &result, sizeof(T));
  }
}

void reduce(ncclDataType_t type, const std::vector<const char*>& inputs, std::size_t first, std::size_t count, int reduction, char* out) {
  switch (type) {
    case ncclInt8: return reduce<std::int8_t>(inputs, first, count, reduction, out);
    case ncclUint8: return reduce<std::uint8_t>(inputs, first, count, reduction, out);
    case ncclInt32: return reduce<std::int32_t>(inputs, first, count, reduction, out);
    case ncclUint32: return reduce<std::uint32_t>(inputs, first, count, reduction, out);
    case ncclInt64: return reduce<std::int64_t>(inputs, first, count, reduction, out);
    case ncclUint64: return reduce<std::uint64_t>(inputs, first, count, reduction, out);
    case ncclFloat16: return reduce<__half>(inputs, first, count, reduction, out);
    case ncclFloat32: return reduce<float>(inputs, first, count, reduction, out);
    case ncclFloat64: return reduce<double>(inputs, first, count, reduction, out);
    case ncclBfloat16: return reduce<__nv_bfloat16>(inputs, first, count, reduction, out);
    default: return;
  }
}

/// What every operation checks first: an order to stall or fail, an abort, an error of a peer.
class GroupOperation : public Operation {
 public:
  explicit GroupOperation(std::shared_ptr<Group> group) : group_(std::move(group)) {}

  Progress advance() final {
    if (group_->aborted) return Progress::kDone;  // NCCL's kernels leave, their results are undefined
    if (!begun_) {
      begun_ = true;
      ++live_counters().collectives;
      stalled_ = injected_failure("ncclStall", 1) != 0;
      const int failure = injected_failure("ncclAsyncError", ncclRemoteError);
      if (failure != 0) {
        group_->async_error = failure;
        stalled_ = true;
      }
      if (!stalled_) begin();
    }
    error_ = group_->error();
    if (error_.empty() && !stalled_) {
      const Progress progress = go_on();
      if (progress != Progress::kFailed) return progress;
      group_->set_error(error_);
    }
    if (error_.empty()) return Progress::kBlocked;
    group_->async_error = ncclInvalidUsage;
    return Progress::kFailed;
  }
  std::uint64_t progress_made() const final { return moves_; }

 protected:
  virtual void begin() = 0;
  virtual Progress go_on() = 0;
  std::string rank_text() const { return fmt::format("rank {} of {}", group_->rank, group_->size); }

  std::shared_ptr<Group> group_;
  std::uint64_t moves_ = 0;
  bool stalled_ = false;

 private:
  bool begun_ = false;
};

class CollectiveOperation final : public GroupOperation {
 public:
  CollectiveOperation(std::shared_ptr<Group> group, const Transfer& transfer) : GroupOperation(std::move(group)), transfer_(transfer) {}

  std::string describe() const override {
    std::string text = fmt::format("{} on {}", nccl::describe(transfer_.signature), rank_text());
    if (stalled_) return text + ", stalled on order";
    for (int peer = 0; peer < group_->size; ++peer) {
      const RankSlot& slot = group_->segment->ranks[static_cast<std::size_t>(peer)];
      if (slot.posted <= number_) text += fmt::format(", waits for rank {}", peer);
    }
    return text;
  }

 private:
  RankSlot& mine() { return group_->segment->ranks[static_cast<std::size_t>(group_->rank)]; }

  void begin() override {
    number_ = group_->next_collective++;
    Posting& posting = mine().postings[number_ % 2];
    posting.signature = transfer_.signature;
    const void* from = transfer_.from == nullptr ? transfer_.to : transfer_.from;
    posting.from = share_address(from);
    release(const_cast<void*>(from));
    mine().posted = number_ + 1;
  }

  Progress go_on() override {
    if (result_ == nullptr) {
      for (int peer = 0; peer < group_->size; ++peer) {
        if (group_->segment->ranks[static_cast<std::size_t>(peer)].posted <= number_) return Progress::kBlocked;
      }
      if (!read_peers()) return Progress::kFailed;
      ++moves_;
      mine().read = number_ + 1;
    }
    for (int peer = 0; peer < group_->size; ++peer) {
      if (group_->segment->ranks[static_cast<std::size_t>(peer)].read <= number_) return Progress::kBlocked;
    }
    const void* from = transfer_.from == nullptr ? transfer_.to : transfer_.from;
    acquire(const_cast<void*>(from));
    if (!result_->empty()) std::memcpy(transfer_.to, result_->data(), result_->size());
    return Progress::kDone;
  }

  bool read_peers() {
    std::vector<const char*> inputs;
    for (int peer = 0; peer < group_->size; ++peer) {
      const Posting& posting = group_->segment->ranks[static_cast<std::size_t>(peer)].postings[number_ % 2];
      if (!(posting.signature == transfer_.signature)) {
        error_ = fmt::format("rank {} calls {}, rank {} calls {}", group_->rank, nccl::describe(transfer_.signature), peer,
                             nccl::describe(posting.signature));
        return false;
      }
      inputs.push_back(static_cast<const char*>(open_address(posting.from)));
      if (inputs.back() == nullptr) {
        error_ = fmt::format("{}: no access to the memory of rank {}", nccl::describe(transfer_.signature), peer);
        return false;
      }
      acquire(const_cast<char*>(inputs.back()));
    }
    compute(inputs);
    for (const char* input : inputs) release(const_cast<char*>(input));
    return true;
  }

  void compute(const std::vector<const char*>& inputs) {
    const auto& [kind, type, count, reduction, root] = transfer_.signature;
    const std::size_t bytes = count * bytes_of(type);
    const auto size = static_cast<std::size_t>(group_->size);
    result_ = std::make_unique<std::vector<char>>();
    switch (kind) {
      case Kind::kReduce:
        if (group_->rank != root) break;
        [[fallthrough]];
      case Kind::kAllReduce:
        result_->resize(bytes);
        reduce(type, inputs, 0, count, reduction, result_->data());
        break;
      case Kind::kReduceScatter:
        result_->resize(bytes);
        reduce(type, inputs, count * static_cast<std::size_t>(group_->rank), count, reduction, result_->data());
        break;
      case Kind::kAllGather:
        result_->resize(bytes * size);
        for (std::size_t peer = 0; peer < size && bytes > 0; ++peer) std::memcpy(result_->data() + peer * bytes, inputs[peer], bytes);
        break;
      case Kind::kBroadcast: result_->assign(inputs[static_cast<std::size_t>(root)], inputs[static_cast<std::size_t>(root)] + bytes); break;
      case Kind::kSend:
      case Kind::kReceive: break;
    }
  }

  Transfer transfer_;
  std::uint64_t number_ = 0;
  std::unique_ptr<std::vector<char>> result_;
};

class ExchangeOperation final : public GroupOperation {
 public:
  ExchangeOperation(std::shared_ptr<Group> group, const std::vector<Transfer>& transfers) : GroupOperation(std::move(group)) {
    for (const Transfer& transfer : transfers) steps_.push_back({transfer});
  }

  std::string describe() const override {
    std::string text = "an exchange on " + rank_text();
    if (stalled_) return text + ", stalled on order";
    for (const Step& step : steps_) {
      if (!step.done) text += fmt::format(", {} with rank {}", nccl::describe(step.transfer.signature), step.transfer.peer);
    }
    return text;
  }

 private:
  struct Step {
    Transfer transfer;
    bool posted = false;
    std::uint64_t number = 0;
    bool done = false;
  };

  void begin() override {}

  Progress go_on() override {
    bool all_done = true;
    std::vector<bool> send_waits(kMaxRanks), receive_waits(kMaxRanks);  // one of a peer waits, so do those behind it
    for (Step& step : steps_) {
      if (step.done) continue;
      const bool sends = step.transfer.signature.kind == Kind::kSend;
      auto waits = (sends ? send_waits : receive_waits)[static_cast<std::size_t>(step.transfer.peer)];
      if (sends) {
        if (!step.posted && !waits) post(step);
        if (step.posted) finish_send(step);
        if (!step.posted) waits = true;
      } else if (!waits) {
        if (!receive(step)) return Progress::kFailed;
        if (!step.done) waits = true;
      }
      all_done = all_done && step.done;
    }
    return all_done ? Progress::kDone : Progress::kBlocked;
  }

  void post(Step& step) {
    Channel& channel = group_->channel(group_->rank, step.transfer.peer);
    if (channel.posted - channel.taken >= Channel::kDepth) return;
    step.number = channel.posted;
    channel.postings[step.number % Channel::kDepth] = {step.transfer.signature, share_address(step.transfer.from)};
    release(const_cast<void*>(step.transfer.from));
    channel.posted = step.number + 1;
    step.posted = true;
    ++moves_;
  }

  void finish_send(Step& step) {
    if (group_->channel(group_->rank, step.transfer.peer).taken <= step.number) return;
    acquire(const_cast<void*>(step.transfer.from));
    step.done = true;
    ++moves_;
  }

  bool receive(Step& step) {
    Channel& channel = group_->channel(step.transfer.peer, group_->rank);
    const std::uint64_t number = channel.taken;
    if (channel.posted <= number) return true;
    const Posting& posting = channel.postings[number % Channel::kDepth];
    const Signature& wanted = step.transfer.signature;
    if (posting.signature.count != wanted.count || posting.signature.type != wanted.type) {
      error_ = fmt::format("rank {} calls {}, rank {} calls {}", step.transfer.peer, nccl::describe(posting.signature), group_->rank,
                           nccl::describe(wanted));
      return false;
    }
    void* from = open_address(posting.from);
    if (from == nullptr) {
      error_ = fmt::format("{}: no access to the memory of rank {}", nccl::describe(wanted), step.transfer.peer);
      return false;
    }
    acquire(from);
    if (wanted.count > 0) std::memmove(step.transfer.to, from, wanted.count * bytes_of(wanted.type));
    release(from);
    channel.taken = number + 1;
    step.done = true;
    ++moves_;
    return true;
  }

  std::vector<Step> steps_;
};

}  // namespace

std::size_t bytes_of(ncclDataType_t type) { return type_name(type).bytes; }

std::string describe(const Signature& signature) {
  std::string text =
      fmt::format("{} of {} {}", kKindNames[static_cast<std::size_t>(signature.kind)], signature.count, type_name(signature.type).name);
  if (signature.kind == Kind::kBroadcast || signature.kind == Kind::kReduce) text += fmt::format(" root {}", signature.root);
  if (signature.reduction != ncclSum) text += fmt::format(" reduction {}", signature.reduction);
  return text;
}

MakeOperation collective_operation(std::shared_ptr<Group> group, const Transfer& transfer) {
  return [group = std::move(group), transfer] { return std::make_unique<CollectiveOperation>(group, transfer); };
}

MakeOperation exchange_operation(std::shared_ptr<Group> group, std::vector<Transfer> transfers) {
  return [group = std::move(group), transfers = std::move(transfers)] { return std::make_unique<ExchangeOperation>(group, transfers); };
}

}  // namespace simt::nccl
