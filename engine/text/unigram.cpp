#include "engine/text/unigram.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <stdexcept>

#include "engine/text/byte_alphabet.h"
#include "engine/text/utf8.h"

namespace lockstep::text {

namespace {

constexpr double kUnknownPenalty = 10.0;  // what an unknown character scores below the worst piece
constexpr std::size_t kLargestWord = std::size_t{1} << 30;

}  // namespace

UnigramEncoder::UnigramEncoder(const std::vector<Piece>& pieces, TokenId unknown_id, bool byte_fallback)
    : unknown_id_(unknown_id), byte_fallback_(byte_fallback) {
  byte_ids_.fill(-1);
  double worst = std::numeric_limits<double>::infinity();
  std::vector<std::pair<std::string_view, TokenId>> sorted;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    scores_.push_back(pieces[i].score);
    worst = std::min(worst, pieces[i].score);
    if (!pieces[i].spelling.empty()) sorted.emplace_back(pieces[i].spelling, id);
    if (const int byte = fallback_byte(pieces[i].spelling); byte >= 0) byte_ids_[static_cast<std::size_t>(byte)] = id;
  }
  unknown_score_ = worst - kUnknownPenalty;
  std::sort(sorted.begin(), sorted.end());
  nodes_.emplace_back();
  // Level by level: what is still to be done lies in a queue, so that a long piece costs no stack.
  struct Task {
    std::uint32_t node;
    std::size_t depth, begin, end;  // the pieces that share the first `depth` bytes
  };
  std::deque<Task> tasks{{0, 0, 0, sorted.size()}};
  while (!tasks.empty()) {
    auto [node, depth, begin, end] = tasks.front();
    tasks.pop_front();
    for (; begin < end && sorted[begin].first.size() == depth; ++begin) nodes_[node].id = sorted[begin].second;  // of equal ones the last
    nodes_[node].first_child = static_cast<std::uint32_t>(nodes_.size());
    while (begin < end) {
      const char byte = sorted[begin].first[depth];
      std::size_t next = begin;
      while (next < end && sorted[next].first[depth] == byte) ++next;
      tasks.push_back({static_cast<std::uint32_t>(nodes_.size()), depth + 1, begin, next});
      nodes_.push_back({.byte = static_cast<unsigned char>(byte)});
      ++nodes_[node].children;
      begin = next;
    }
  }
}

const UnigramEncoder::Node* UnigramEncoder::child(const Node& node, unsigned char byte) const {
  const auto first = nodes_.begin() + node.first_child, last = first + node.children;
  const auto found = std::lower_bound(first, last, byte, [](const Node& each, unsigned char wanted) { return each.byte < wanted; });
  return found == last || found->byte != byte ? nullptr : &*found;
}

void UnigramEncoder::encode(std::string_view word, std::vector<TokenId>& ids) const {
  struct Best {  // the best way to write the text up to here
    double score = 0;
    std::uint32_t start = 0;  // of its last piece
    TokenId id = -1;          // -1: unknown
    bool reached = false;
  };
  if (word.empty()) return;
  if (word.size() >= kLargestWord)
    throw std::runtime_error("the text has a word of " + std::to_string(word.size()) + " bytes; the limit is 1 GiB");
  std::vector<Best> best(word.size() + 1);
  const auto offer = [&](std::size_t start, std::size_t end, double score, TokenId id) {
    const double sum = best[start].score + score;
    if (!best[end].reached || sum > best[end].score) best[end] = {sum, static_cast<std::uint32_t>(start), id, true};
  };
  for (std::size_t start = 0, length; start < word.size(); start += length) {
    length = next_character(word.substr(start)).length;
    bool alone = false;  // the character is a piece
    const Node* node = nodes_.data();
    for (std::size_t end = start; end < word.size() && (node = child(*node, static_cast<unsigned char>(word[end]))) != nullptr;) {
      ++end;
      if (node->id < 0) continue;
      offer(start, end, scores_[static_cast<std::size_t>(node->id)], node->id);
      alone = alone || end == start + length;
    }
    if (!alone) offer(start, start + length, unknown_score_, -1);
  }
  std::vector<std::size_t> ends;
  for (std::size_t end = word.size(); end > 0; end = best[end].start) ends.push_back(end);
  std::size_t unknown_begin = 0, unknown_end = 0;  // neighbouring unknown characters are one
  for (auto end = ends.rbegin(); end != ends.rend(); ++end) {
    if (best[*end].id < 0 || best[*end].id == unknown_id_) {
      if (unknown_begin == unknown_end) unknown_begin = best[*end].start;
      unknown_end = *end;
      continue;
    }
    append_unknown(word.substr(unknown_begin, unknown_end - unknown_begin), ids);
    unknown_begin = unknown_end = 0;
    ids.push_back(best[*end].id);
  }
  append_unknown(word.substr(unknown_begin, unknown_end - unknown_begin), ids);
}

void UnigramEncoder::append_unknown(std::string_view text, std::vector<TokenId>& ids) const {
  if (text.empty()) return;
  const auto token_of = [&](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
  if (byte_fallback_ && std::all_of(text.begin(), text.end(), [&](char byte) { return token_of(byte) >= 0; })) {
    std::transform(text.begin(), text.end(), std::back_inserter(ids), token_of);
  } else if (unknown_id_ >= 0) {
    ids.push_back(unknown_id_);
  }
}

}  // namespace lockstep::text
