#include "engine/text/bpe.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <queue>
#include <stdexcept>

#include "engine/text/byte_alphabet.h"
#include "engine/text/utf8.h"

namespace lockstep::text {

namespace {

constexpr std::size_t kLargestWord = std::size_t{1} << 30;  // positions are 32 bits
constexpr std::size_t kShortWord = 48;                      // up to here a linear search beats a heap
constexpr std::int32_t kNoRank = std::numeric_limits<std::int32_t>::max();

std::uint64_t key_of(TokenId left, TokenId right) {
  return (std::uint64_t{static_cast<std::uint32_t>(left)} << 32) | static_cast<std::uint32_t>(right);
}

std::size_t slot_of(std::uint64_t key) { return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15u) >> 20); }

/// Where the second word starts: at the first marker with no marker before it, but not at the start.
std::size_t next_cut(std::string_view text) {
  for (std::size_t found = text.find(kSpaceMarker); found != std::string_view::npos;
       found = text.find(kSpaceMarker, found + kSpaceMarker.size())) {
    if (found > 0 && !text.substr(0, found).ends_with(kSpaceMarker)) return found;
  }
  return text.size();
}

}  // namespace

BytePairEncoder::BytePairEncoder(std::unordered_map<std::string, TokenId> words, const std::vector<Merge>& merges, const Rules& rules)
    : rules_(rules), pairs_(std::bit_ceil(2 * merges.size() + 2)) {
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const std::uint64_t key = key_of(merges[rank].left, merges[rank].right);
    std::size_t slot = slot_of(key) & (pairs_.size() - 1);
    while (pairs_[slot].key != kNoPair && pairs_[slot].key != key) slot = (slot + 1) & (pairs_.size() - 1);
    pairs_[slot] = {key, merges[rank].rank < 0 ? static_cast<std::int32_t>(rank) : merges[rank].rank, merges[rank].result};
  }
  words_.reserve(words.size());
  while (!words.empty()) {
    auto node = words.extract(words.begin());
    words_.emplace(std::move(node.key()), Word{node.mapped(), false});
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    const auto word =
        words_.find(rules_.symbols_are_bytes ? std::string(1, static_cast<char>(byte)) : fallback_token(static_cast<unsigned char>(byte)));
    byte_ids_[byte] = word == words_.end() ? -1 : word->second.id;
  }
  // Most words of prose are one token. To know in advance which tokens the merges arrive at saves merging them each time.
  std::vector<TokenId> symbols;
  for (auto& [text, word] : words_) {
    symbols.clear();
    append_symbols(text, symbols);
    word.stable = merge(symbols) == 1 && symbols[0] == word.id;
  }
  cuts_at_markers_ = can_cut_at_markers(merges);
}

bool BytePairEncoder::can_cut_at_markers(const std::vector<Merge>& merges) const {
  if (rules_.symbols_are_bytes || rules_.whole_words_first || !words_.contains(kSpaceMarker)) return false;
  std::unordered_map<TokenId, std::string_view> spellings;
  for (const auto& [text, word] : words_) spellings.emplace(word.id, text);
  return std::none_of(merges.begin(), merges.end(), [&](const Merge& merge) {
    const auto left = spellings.find(merge.left), right = spellings.find(merge.right);
    return left == spellings.end() || right == spellings.end() ||
           (!left->second.ends_with(kSpaceMarker) && right->second.starts_with(kSpaceMarker));
  });
}

const BytePairEncoder::Pair* BytePairEncoder::find(TokenId left, TokenId right) const {
  const std::uint64_t key = key_of(left, right);
  std::size_t slot = slot_of(key) & (pairs_.size() - 1);
  for (; pairs_[slot].key != kNoPair; slot = (slot + 1) & (pairs_.size() - 1)) {
    if (pairs_[slot].key == key) return &pairs_[slot];
  }
  return nullptr;
}

void BytePairEncoder::encode(std::string_view word, std::vector<TokenId>& ids) const {
  if (word.empty()) return;
  if (word.size() >= kLargestWord)
    throw std::runtime_error("the text has a word of " + std::to_string(word.size()) + " bytes; the limit is 1 GiB");
  // Text that comes uncut, as SentencePiece has it, is cut where that changes nothing: short words are found in the vocabulary.
  while (cuts_at_markers_ && !word.empty()) {
    const std::size_t cut = next_cut(word);
    encode_whole(word.substr(0, cut), ids);
    word.remove_prefix(cut);
  }
  if (!word.empty()) encode_whole(word, ids);
}

void BytePairEncoder::encode_whole(std::string_view word, std::vector<TokenId>& ids) const {
  const auto known = words_.find(word);
  if (known != words_.end() && (known->second.stable || rules_.whole_words_first)) {
    ids.push_back(known->second.id);
    return;
  }
  const std::size_t start = ids.size();
  append_symbols(word, ids);
  ids.resize(start + merge(std::span(ids).subspan(start)));
}

void BytePairEncoder::append_symbols(std::string_view word, std::vector<TokenId>& symbols) const {
  bool unknown_waits = false;
  if (rules_.symbols_are_bytes) {
    for (const char byte : word) {
      const TokenId id = byte_ids_[static_cast<unsigned char>(byte)];
      if (id >= 0) {
        if (unknown_waits) symbols.push_back(rules_.unknown_id);
        unknown_waits = false;
        symbols.push_back(id);
      } else if (rules_.unknown_id >= 0) {
        if (unknown_waits && !rules_.fuse_unknown) symbols.push_back(rules_.unknown_id);
        unknown_waits = true;
      }
    }
  } else {
    while (!word.empty()) {
      const std::size_t length = next_character(word).length;
      append_character(word.substr(0, length), unknown_waits, symbols);
      word.remove_prefix(length);
    }
  }
  if (unknown_waits) symbols.push_back(rules_.unknown_id);
}

void BytePairEncoder::append_character(std::string_view character, bool& unknown_waits, std::vector<TokenId>& symbols) const {
  const auto word = words_.find(character);
  if (word != words_.end()) {
    if (unknown_waits) symbols.push_back(rules_.unknown_id);
    unknown_waits = false;
    symbols.push_back(word->second.id);
    return;
  }
  const auto token_of = [&](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
  if (rules_.byte_fallback && std::all_of(character.begin(), character.end(), [&](char byte) { return token_of(byte) >= 0; })) {
    for (const char byte : character)
      symbols.push_back(token_of(byte));  // an unknown symbol that waits goes on waiting: as the reference has it
  } else if (rules_.unknown_id >= 0) {
    if (unknown_waits && !rules_.fuse_unknown) symbols.push_back(rules_.unknown_id);
    unknown_waits = true;
  }
}

std::size_t BytePairEncoder::merge(std::span<TokenId> symbols) const {
  return symbols.size() <= kShortWord ? merge_short(symbols) : merge_long(symbols);
}

std::size_t BytePairEncoder::merge_short(std::span<TokenId> symbols) const {
  std::array<std::int32_t, kShortWord> ranks;  // ranks[i] and results[i]: of the pair (i, i + 1)
  std::array<TokenId, kShortWord> results;
  std::size_t count = symbols.size();
  if (count < 2) return count;
  const auto look_up = [&](std::size_t i) {
    const Pair* pair = find(symbols[i], symbols[i + 1]);
    ranks[i] = pair ? pair->rank : kNoRank;
    results[i] = pair ? pair->result : -1;
  };
  for (std::size_t i = 0; i + 1 < count; ++i) look_up(i);
  while (count > 1) {
    const auto last = ranks.begin() + static_cast<std::ptrdiff_t>(count - 1);
    const auto best = std::min_element(ranks.begin(), last);  // the leftmost of equal ones
    if (*best == kNoRank) break;
    const auto i = static_cast<std::size_t>(best - ranks.begin());
    symbols[i] = results[i];
    std::copy(symbols.begin() + static_cast<std::ptrdiff_t>(i) + 2, symbols.begin() + static_cast<std::ptrdiff_t>(count),
              symbols.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    std::copy(best + 1, last, best);
    std::copy(results.begin() + static_cast<std::ptrdiff_t>(i) + 1, results.begin() + static_cast<std::ptrdiff_t>(count - 1),
              results.begin() + static_cast<std::ptrdiff_t>(i));
    --count;
    if (i + 1 < count) look_up(i);
    if (i > 0) look_up(i - 1);
  }
  return count;
}

std::size_t BytePairEncoder::merge_long(std::span<TokenId> symbols) const {
  struct Link {
    std::int32_t previous, next;
  };
  struct Candidate {
    std::int32_t rank, position;
    bool operator>(const Candidate& other) const { return rank != other.rank ? rank > other.rank : position > other.position; }
  };
  const auto count = static_cast<std::int32_t>(symbols.size());
  std::vector<Link> links(symbols.size());
  std::vector<Candidate> first;
  const auto at = [&](std::int32_t position) -> TokenId& { return symbols[static_cast<std::size_t>(position)]; };
  for (std::int32_t i = 0; i < count; ++i) {
    links[static_cast<std::size_t>(i)] = {i - 1, i + 1 < count ? i + 1 : -1};
    if (i + 1 == count) break;
    if (const Pair* pair = find(at(i), at(i + 1))) first.push_back({pair->rank, i});
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue(std::greater<>{}, std::move(first));
  while (!queue.empty()) {
    const Candidate candidate = queue.top();
    queue.pop();
    Link& link = links[static_cast<std::size_t>(candidate.position)];
    if (at(candidate.position) < 0 || link.next < 0) continue;
    const Pair* pair = find(at(candidate.position), at(link.next));
    if (!pair || pair->rank != candidate.rank) continue;  // one of the two was merged away since
    at(candidate.position) = pair->result;
    at(link.next) = -1;
    link.next = links[static_cast<std::size_t>(link.next)].next;
    if (link.next >= 0) {
      links[static_cast<std::size_t>(link.next)].previous = candidate.position;
      if (const Pair* right = find(at(candidate.position), at(link.next))) queue.push({right->rank, candidate.position});
    }
    if (link.previous >= 0) {
      if (const Pair* left = find(at(link.previous), at(candidate.position))) queue.push({left->rank, link.previous});
    }
  }
  return static_cast<std::size_t>(std::remove_if(symbols.begin(), symbols.end(), [](TokenId id) { return id < 0; }) - symbols.begin());
}

}  // namespace lockstep::text
