#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/tokenizer_parts.h"

namespace lockstep::text {

/// Types of a piece in a SentencePiece model; GGUF has the same in tokenizer.ggml.token_type.
enum class TokenType : std::int32_t { Normal = 1, Unknown = 2, Control = 3, UserDefined = 4, Unused = 5, Byte = 6 };

/// Appends the next token of a SentencePiece vocabulary, and makes it an added token where it is one of control.
/// `unknown_text`: what the unknown token stands for in text.
void append_piece(TokenizerParts& parts, const std::string& spelling, TokenType type, std::string_view unknown_text);
inline constexpr std::string_view kUnknownText = " \xE2\x81\x87 ";  // U+2047 between spaces, unless a model says something else

/// What a tokenizer.model says, as far as we need it beside libsentencepiece.
struct SentencePieceModel {
  enum class Kind : std::int32_t { Unigram = 1, Bpe = 2, Word = 3, Char = 4 };
  struct Piece {
    std::string spelling;
    float score = 0;
    TokenType type = TokenType::Normal;
  };
  std::vector<Piece> pieces;  // by id
  Kind kind = Kind::Unigram;
  std::int32_t bos_id = 1, eos_id = 2;  // -1: none
  std::string unknown_text{kUnknownText};
  bool spaces_at_the_end = false;  // a marker ends a word instead of starting it
  std::string normalizer;          // the name of its rules: "identity", "nmt_nfkc", ...
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
};

/// Reads the file, a Protocol Buffers message, and checks all that libsentencepiece takes on trust, so that it may be given the same bytes.
/// @throws std::runtime_error that names `source`.
SentencePieceModel read_sentencepiece_model(const std::string& source, std::string_view bytes);

}  // namespace lockstep::text
