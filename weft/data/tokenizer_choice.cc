#include "weft/data/tokenizer_choice.h"

#include <algorithm>
#include <array>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/text.h"
#include "weft/data/byte_tokenizer.h"
#include "weft/data/null_tokenizer.h"
#include "weft/data/tokenizers/hugging_face.h"
#include "weft/data/tokenizers/sentencepiece.h"
#include "weft/data/tokenizers/tiktoken.h"

namespace weft {

namespace {

namespace fs = std::filesystem;

enum class Kind : std::uint8_t { bytes, null, hugging_face, sentencepiece, tiktoken, gpt2, unknown };

struct Type {
  std::string name;
  Kind kind;
};

const std::array<Type, 8>& types() {
  static const std::array<Type, 8> all = {{{"ByteTokenizer", Kind::bytes},
                                           {"NullTokenizer", Kind::null},
                                           {"HuggingFaceTokenizer", Kind::hugging_face},
                                           {"SentencePieceTokenizer", Kind::sentencepiece},
                                           {"GPTSentencePieceTokenizer", Kind::sentencepiece},
                                           {"Llama2Tokenizer", Kind::sentencepiece},
                                           {"TikTokenizer", Kind::tiktoken},
                                           {"GPT2BPETokenizer", Kind::gpt2}}};
  return all;
}

Kind kind_of(const std::string& name) {
  for (const Type& type : types())
    if (type.name == name) return type.kind;
  return Kind::unknown;
}

[[noreturn]] void refuse(const std::string& name) {
  std::vector<std::string> known;
  for (const Type& type : types()) known.push_back(type.name);
  const std::string near = nearest_name(name, known);
  throw UserError("unknown tokenizer type {}{}; there are {}", name,
                  near.empty() ? "" : " (did you mean " + near + "?)", join(known, ", "));
}

// The file's kind, by how it begins.
Kind kind_of_file(const fs::path& file, std::string_view text) {
  const std::string_view begin = trim(text.substr(0, 400));
  if (begin.starts_with('{')) return Kind::hugging_face;
  if (begin.starts_with('[')) return Kind::tiktoken;
  const std::string_view line = trim(begin.substr(0, begin.find('\n')));
  const std::size_t space = line.find(' ');
  std::int64_t rank = 0;
  if (space != std::string_view::npos && parse_int(line.substr(space + 1), rank)) return Kind::tiktoken;
  if (text.starts_with('\n')) return Kind::sentencepiece;  // the tag of its first field
  throw UserError(
      "{}: is neither tokenizer.json of Hugging Face, nor a SentencePiece model, nor a file of tiktoken; name what it "
      "is "
      "with --tokenizer-type",
      file.string());
}

TiktokenOptions tiktoken_options(const TokenizerChoice& choice) {
  return {choice.tiktoken_pattern, choice.tiktoken_num_special_tokens, choice.vocab_size, choice.special_tokens};
}

// The file that --tokenizer-model names, by itself or by its folder.
fs::path file_of(const TokenizerChoice& choice) {
  std::error_code error;
  if (!fs::is_directory(choice.model, error)) return choice.model;
  const fs::path file = tokenizer_file_in(choice.model);
  if (file.empty())
    throw UserError("--tokenizer-model {}: the folder has no tokenizer.json, tokenizer.model or vocab.json",
                    choice.model);
  return file;
}

// Whether the file is what `choice.type` says is left to its reader.
std::unique_ptr<Tokenizer> read(const TokenizerChoice& choice, Kind kind, const fs::path& file) {
  switch (kind) {
    case Kind::hugging_face:
      return read_hugging_face_tokenizer(file);
    case Kind::sentencepiece:
      return read_sentencepiece(file);
    case Kind::tiktoken:
      return read_tiktoken(file, tiktoken_options(choice));
    case Kind::gpt2:
      return read_gpt2_tokenizer(file, file.parent_path() / "merges.txt");
    case Kind::bytes:
    case Kind::null:
    case Kind::unknown:
      break;
  }
  return read(choice, kind_of_file(file, read_regular_file(file)), file);
}

}  // namespace

bool is_read_from_file(const std::string& tokenizer_type) {
  const Kind kind = kind_of(tokenizer_type);
  return kind != Kind::bytes && kind != Kind::null && kind != Kind::unknown;
}

std::shared_ptr<const Tokenizer> tokenizer_of(const TokenizerChoice& choice) {
  if (choice.loaded) return choice.loaded;
  return make_tokenizer(choice);
}

bool names_file(const TokenizerChoice& choice) {
  return choice.type.empty() ? !choice.model.empty() : is_read_from_file(choice.type);
}

fs::path tokenizer_file_in(const fs::path& folder) {
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.json"})
    if (is_there(folder / name)) return folder / name;
  return {};
}

std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerChoice& choice) {
  const Kind kind = choice.type.empty() ? Kind::unknown : kind_of(choice.type);
  if (kind == Kind::bytes) return std::make_unique<ByteTokenizer>();
  if (kind == Kind::null) return std::make_unique<NullTokenizer>(choice.vocab_size);
  if (kind == Kind::unknown && !choice.type.empty()) refuse(choice.type);
  if (kind == Kind::gpt2 && choice.model.empty()) {
    if (choice.vocab_file.empty() || choice.merge_file.empty())
      throw UserError(
          "--tokenizer-type GPT2BPETokenizer: needs --vocab-file vocab.json and --merge-file merges.txt, or "
          "--tokenizer-model tokenizer.json");
    return read_gpt2_tokenizer(choice.vocab_file, choice.merge_file);
  }
  if (choice.model.empty()) throw UserError("--tokenizer-type {}: needs --tokenizer-model PATH, its file", choice.type);
  const fs::path file = file_of(choice);
  const bool pair = file.filename() == "vocab.json";  // of GPT-2, with merges.txt beside it
  if (pair && (kind == Kind::gpt2 || kind == Kind::unknown || kind == Kind::hugging_face))
    return read(choice, Kind::gpt2, file);
  return read(choice, kind == Kind::gpt2 ? Kind::hugging_face : kind, file);
}

std::vector<std::pair<std::string, std::string>> tokenizer_files(const TokenizerChoice& choice) {
  if (!names_file(choice)) return {};
  if (choice.model.empty())
    return {{"vocab.json", read_regular_file(choice.vocab_file)}, {"merges.txt", read_regular_file(choice.merge_file)}};
  const fs::path file = file_of(choice);
  std::string bytes = read_regular_file(file);
  Kind kind = choice.type.empty() ? kind_of_file(file, bytes) : kind_of(choice.type);
  if (file.filename() == "vocab.json")
    return {{"vocab.json", std::move(bytes)}, {"merges.txt", read_regular_file(file.parent_path() / "merges.txt")}};
  if (kind == Kind::tiktoken) return {};
  if (kind == Kind::sentencepiece) return {{"tokenizer.model", std::move(bytes)}};
  std::vector<std::pair<std::string, std::string>> files = {{"tokenizer.json", std::move(bytes)}};
  for (const char* beside : {"tokenizer_config.json", "special_tokens_map.json"})
    if (is_there(file.parent_path() / beside))
      files.emplace_back(beside, read_regular_file(file.parent_path() / beside));
  return files;
}

}  // namespace weft
