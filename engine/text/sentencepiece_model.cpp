#include "engine/text/sentencepiece_model.h"

#include <bit>
#include <cmath>
#include <stdexcept>

#include "engine/text/byte_alphabet.h"
#include "engine/text/chars_map.h"
#include "engine/text/utf8.h"

namespace lockstep::text {

namespace {

/// A message of Protocol Buffers, field by field.
class Message {
 public:
  explicit Message(std::string_view bytes) : bytes_(bytes) {}

  /// Goes to the next field; false at the end. @throws std::runtime_error where the message is damaged.
  bool next() {
    if (bytes_.empty()) return false;
    const std::uint64_t key = varint();
    // libsentencepiece's reader drops the bits above, and would find another field here than the one that was checked.
    if (key > 0xFFFFFFFF) throw std::runtime_error("is no SentencePiece model (a field of a number of more than 32 bits)");
    field_ = key >> 3;
    text_ = {};
    number_ = 0;
    switch (key & 7) {
      case 0: number_ = varint(); break;
      case 1: number_ = fixed(8); break;
      case 2: text_ = take(varint()); break;
      case 5: number_ = fixed(4); break;
      default: throw std::runtime_error("is no SentencePiece model (a field of wire type " + std::to_string(key & 7) + ")");
    }
    return true;
  }
  std::uint64_t field() const { return field_; }
  std::string_view text() const { return text_; }
  std::int32_t integer() const { return static_cast<std::int32_t>(static_cast<std::uint32_t>(number_)); }
  bool boolean() const { return number_ != 0; }
  float real() const { return std::bit_cast<float>(static_cast<std::uint32_t>(number_)); }

 private:
  std::string_view take(std::uint64_t size) {
    if (size > bytes_.size()) throw std::runtime_error("ends early, or is no SentencePiece model");
    const std::string_view part = bytes_.substr(0, static_cast<std::size_t>(size));
    bytes_.remove_prefix(part.size());
    return part;
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= std::uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    throw std::runtime_error("is no SentencePiece model (a number of more than 64 bits)");
  }
  std::uint64_t fixed(std::size_t size) {
    std::uint64_t value = 0;
    unsigned shift = 0;
    for (const char byte : take(size)) value |= std::uint64_t{static_cast<unsigned char>(byte)} << shift, shift += 8;
    return value;
  }

  std::string_view bytes_, text_;
  std::uint64_t field_ = 0, number_ = 0;
};

SentencePieceModel::Piece read_piece(std::string_view bytes) {
  SentencePieceModel::Piece piece;
  for (Message message(bytes); message.next();) {
    if (message.field() == 1) piece.spelling = message.text();
    if (message.field() == 2) piece.score = message.real();
    if (message.field() == 3) piece.type = static_cast<TokenType>(message.integer());
  }
  return piece;
}

void check_piece(const SentencePieceModel::Piece& piece, std::size_t id) {
  const auto fail = [&](const char* what) { throw std::runtime_error("the piece " + std::to_string(id) + " " + what); };
  if (piece.spelling.empty()) fail("is empty");
  if (piece.spelling.size() > AddedTokenFinder::kLongestContent) fail("has more than 4096 bytes");
  if (!is_valid_utf8(piece.spelling)) fail("is no UTF-8");
  if (!std::isfinite(piece.score)) fail("has a score that is not finite");
  if (piece.type < TokenType::Normal || piece.type > TokenType::Byte) fail("has an unknown type");
  if (piece.type == TokenType::Byte && fallback_byte(piece.spelling) < 0) fail("is of the type byte, but not spelled <0x..>");
}

void read_trainer(std::string_view bytes, SentencePieceModel& model) {
  for (Message message(bytes); message.next();) {
    if (message.field() == 3) model.kind = static_cast<SentencePieceModel::Kind>(message.integer());
    if (message.field() == 24) model.spaces_at_the_end = message.boolean();
    if (message.field() == 41) model.bos_id = message.integer();
    if (message.field() == 42) model.eos_id = message.integer();
    if (message.field() == 44) model.unknown_text = message.text();
  }
}

/// Of the normalizer, or of the denormalizer, whose table is all that counts.
void read_normalizer(std::string_view bytes, SentencePieceModel& model) {
  for (Message message(bytes); message.next();) {
    if (message.field() == 1) model.normalizer = message.text();
    if (message.field() == 2 && !message.text().empty()) CharsMap{message.text()};
    if (message.field() == 3) model.add_dummy_prefix = message.boolean();
    if (message.field() == 4) model.remove_extra_whitespaces = message.boolean();
    if (message.field() == 5) model.escape_whitespaces = message.boolean();
  }
}

void check(SentencePieceModel& model) {
  using Kind = SentencePieceModel::Kind;
  if (model.kind != Kind::Unigram && model.kind != Kind::Bpe) {
    const std::string name = model.kind == Kind::Word ? "word" : model.kind == Kind::Char ? "char" : "unknown";
    throw std::runtime_error("a model of the type " + name + " is not supported (supported: unigram, bpe)");
  }
  if (model.pieces.empty()) throw std::runtime_error("has no pieces");
  for (std::size_t id = 0; id < model.pieces.size(); ++id) check_piece(model.pieces[id], id);
  if (!is_valid_utf8(model.unknown_text)) throw std::runtime_error("the text of the unknown piece is no UTF-8");
  for (std::int32_t* id : {&model.bos_id, &model.eos_id}) {
    const auto index = static_cast<std::size_t>(*id);
    if (*id < 0 || index >= model.pieces.size() || model.pieces[index].type != TokenType::Control) *id = -1;
  }
}

std::string with_spaces(std::string_view spelling) {
  std::string text;
  for (std::size_t found; (found = spelling.find(kSpaceMarker)) != std::string_view::npos;) {
    text += spelling.substr(0, found);
    text += ' ';
    spelling.remove_prefix(found + kSpaceMarker.size());
  }
  return text += spelling;
}

}  // namespace

void append_piece(TokenizerParts& parts, const std::string& spelling, TokenType type, std::string_view unknown_text) {
  const auto id = static_cast<TokenId>(parts.tokens.size());
  const bool control = type == TokenType::Control, unknown = type == TokenType::Unknown;
  TokenizerParts::Token token{.spelling = spelling, .bytes = with_spaces(spelling), .special = control, .present = true};
  if (type == TokenType::Byte) token.bytes = std::string(1, static_cast<char>(fallback_byte(spelling)));
  if (unknown) token.bytes = unknown_text;
  if ((control || unknown) && !spelling.empty() && spelling.size() <= AddedTokenFinder::kLongestContent)
    parts.added.push_back({.id = id, .content = spelling, .special = true});
  parts.tokens.push_back(std::move(token));
}

SentencePieceModel read_sentencepiece_model(const std::string& source, std::string_view bytes) {
  try {
    SentencePieceModel model, other;
    for (Message message(bytes); message.next();) {
      if (message.field() == 1) model.pieces.push_back(read_piece(message.text()));
      if (message.field() == 2) read_trainer(message.text(), model);
      if (message.field() == 3) read_normalizer(message.text(), model);
      if (message.field() == 5) read_normalizer(message.text(), other);
    }
    check(model);
    return model;
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(source + ": " + error.what());
  }
}

}  // namespace lockstep::text
