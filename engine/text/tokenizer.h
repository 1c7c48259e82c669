#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::text {

using TokenId = std::int32_t;

/// The vocabulary and rules of a tokenizer as a GGUF file's metadata (`tokenizer.ggml.*`) states them.
struct GgufVocabulary {
  std::string source;               // the file, for messages
  std::string model;                // tokenizer.ggml.model: "gpt2" is byte-level BPE, "llama" SentencePiece's BPE with scores
  std::string pre;                  // tokenizer.ggml.pre: which expression splits the text ("smollm", "llama-bpe", "qwen2", "gpt-2", ...)
  std::vector<std::string> tokens;  // by id
  std::vector<std::string> merges;  // "left right", best first (model "gpt2")
  std::vector<float> scores;        // by id, the best highest (model "llama")
  std::vector<std::int32_t> types;  // by id: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte; may be empty
  std::int32_t bos_id = -1;         // -1: absent
  std::int32_t eos_id = -1;
  std::int32_t eot_id = -1;
  std::int32_t pad_id = -1;
  std::int32_t unknown_id = -1;
  int add_bos = -1;  // 1, 0, or -1 where the file does not say
  int add_eos = -1;
  int add_space_prefix = -1;  // model "llama": a space in front of the text; -1 is yes
};

/// Text to token ids and back. Immutable after construction, so one object serves all threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// `add_special`: put BOS/EOS where the tokenizer's rules say so (never a second BOS in front of one that the text already spells).
  /// Special tokens that are spelled in the text are recognised where `parse_special` is set. Invalid UTF-8 is read as U+FFFD.
  virtual std::vector<TokenId> encode(std::string_view text, bool add_special, bool parse_special = true) const = 0;
  /// The bytes that a token stands for, which need not be whole characters. Empty for an id that has none.
  /// Special tokens give their spelling where `include_special` is set.
  virtual std::string_view bytes_of(TokenId id, bool include_special = true) const = 0;
  virtual std::size_t vocab_size() const = 0;
  virtual bool is_special(TokenId id) const = 0;
  virtual TokenId bos_id() const = 0;  // -1: none
  virtual TokenId eos_id() const = 0;  // -1: none
  /// The id of exactly this token as the vocabulary spells it (in a byte-level vocabulary "Ġthe" is the one with the space), or -1.
  virtual TokenId id_of(std::string_view token) const = 0;
  /// How text is put together from the bytes of tokens, beyond joining them.
  struct TextRules {
    int leading_spaces_to_drop = 0;           // at most so many, in front of the whole text (SentencePiece-like vocabularies have 1)
    bool first_token_without_spaces = false;  // the first token loses all of its spaces (a Metaspace decoder)
    bool replacement_per_byte = false;        // each malformed byte becomes a U+FFFD, not each longest prefix of a character
  };
  virtual TextRules text_rules() const { return {}; }
  /// What chat templates see as bos_token and eos_token; empty where there is none.
  std::string_view spelling(TokenId id) const { return id < 0 ? std::string_view() : bytes_of(id, true); }

  /// The whole text of some ids; malformed UTF-8 becomes U+FFFD.
  std::string decode(std::span<const TokenId> ids, bool skip_special = false) const;
};

/// Byte-level BPE (model "gpt2") or SentencePiece's BPE (model "llama"). BOS and EOS are added as add_bos and add_eos say; where the file
/// does not say, model "llama" and the families of Llama 3 and Mistral's Tekken add BOS, and nothing else adds any. A merge whose result is
/// no token is left out (llama.cpp wants at least one merge, so files without any have such a one).
/// @throws std::runtime_error that names the file and what it does not support.
std::unique_ptr<Tokenizer> tokenizer_from_gguf(GgufVocabulary vocabulary);

/// Reads the tokenizer.json of a Hugging Face folder or, where there is none, its tokenizer.model or its vocab.json and merges.txt; beside
/// it tokenizer_config.json and special_tokens_map.json, which may be absent. Of a tokenizer.json:
/// - Which special tokens `add_special` adds: those of a TemplateProcessing post-processor, where there is one that adds any;
///   else bos_token and eos_token, as add_bos_token and add_eos_token of tokenizer_config.json say; else none.
/// - Which tokens are BOS and EOS: bos_token and eos_token of tokenizer_config.json, else of special_tokens_map.json, else none.
/// Supported are BPE and Unigram models with the parts that docs/tokenizers.md lists; everything else is refused by name.
/// @throws std::runtime_error that names the file and the place in it (a JSON pointer).
std::unique_ptr<Tokenizer> tokenizer_from_folder(const std::filesystem::path& folder);
/// The same from memory. `source_name` is the path of tokenizer.json, for messages; an empty text stands for a file that is absent.
std::unique_ptr<Tokenizer> tokenizer_from_json(const std::string& source_name, std::string_view json_text,
                                               std::string_view config_text = {}, std::string_view special_tokens_map_text = {});

/// A SentencePiece model (BPE or Unigram), run by libsentencepiece. Which tokens are BOS and EOS: those that tokenizer_config.json or
/// special_tokens_map.json names, else the model's own. BOS is added unless add_bos_token of tokenizer_config.json is false, EOS where
/// add_eos_token is true. Tokens beyond the model are those of added_tokens_decoder in tokenizer_config.json, else of added_tokens.json.
/// An empty text stands for a file that is absent.
/// @throws std::runtime_error that names the file and what is wrong or not supported.
std::unique_ptr<Tokenizer> tokenizer_from_sentencepiece(const std::string& source_name, std::string_view model,
                                                        std::string_view config_text = {}, std::string_view special_tokens_map_text = {},
                                                        std::string_view added_tokens_text = {});

/// Hands out text token by token and never half a character: bytes that may still become a character are held back, hopeless ones become
/// U+FFFD at once.
class IncrementalDetokenizer {
 public:
  /// `tokenizer` outlives this object. `before`: tokens that the text goes on from, such as a prompt; a space that only the start of a
  /// whole text loses is kept after them.
  explicit IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special = true, std::span<const TokenId> before = {});
  /// The text that is certain now.
  std::string append(TokenId id);
  /// What is still held back, as U+FFFD.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  Tokenizer::TextRules rules_;  // what of them is still to be done
  std::string held_;            // the start of a character
};

}  // namespace lockstep::text
