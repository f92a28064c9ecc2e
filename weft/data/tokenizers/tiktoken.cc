#include "weft/data/tokenizers/tiktoken.h"

#include <algorithm>

#include "weft/base/file.h"
#include "weft/base/text.h"
#include "weft/data/tokenizers/json_fields.h"
#include "weft/data/tokenizers/pipeline.h"

namespace weft {

namespace {

constexpr std::array<std::string_view, 7> first_specials = {"<unk>", "<s>",   "</s>", "<mask>",
                                                            "<pad>", "<cls>", "<sep>"};
constexpr std::int64_t megatron_specials = 1000, megatron_vocabulary = 131072;

constexpr std::array<const char*, tiktoken_patterns.size()> pattern_texts = {
    R"([^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)",
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)",
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)"};

struct Token {
  std::string bytes;
  std::int64_t rank;
};

std::string from_base64(std::string_view text, const std::string& place) {
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  const std::string_view digits = text.substr(0, std::min(text.find_last_not_of('=') + 1, text.size()));
  if (text.empty() || text.size() % 4 != 0 || text.size() - digits.size() > 2)
    throw UserError("{}: \"{}\" is not base64", place, text.substr(0, 40));
  for (char c : digits) {
    const int value = c >= 'A' && c <= 'Z'   ? c - 'A'
                      : c >= 'a' && c <= 'z' ? c - 'a' + 26
                      : c >= '0' && c <= '9' ? c - '0' + 52
                      : c == '+'             ? 62
                      : c == '/'             ? 63
                                             : -1;
    if (value < 0) throw UserError("{}: \"{}\" is not base64", place, text.substr(0, 40));
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(static_cast<unsigned char>(bits >> count & 0xff));
  }
  return bytes;
}

std::vector<Token> tokens_of_json(std::string_view text, const std::string& where) {
  const Json json = parse_json(text, where);
  if (!json.is_array()) throw UserError("{}: must be a list of tokens, and is {}", where, json.type_name());
  std::vector<Token> tokens;
  tokens.reserve(json.size());
  for (std::size_t i = 0; i < json.size(); ++i) {
    const JsonFields fields(json[i], fmt::format("{}: token {}", where, i));
    const std::int64_t rank = fields.number("rank", -1);
    if (rank != static_cast<std::int64_t>(i))
      throw UserError("{}: must be {}, its place in the list, and is {}", fields.place_of("rank"), i, rank);
    tokens.push_back({from_base64(fields.text("token_bytes"), fields.place_of("token_bytes")), rank});
  }
  return tokens;
}

std::vector<Token> tokens_of_lines(std::string_view text, const std::string& where) {
  std::vector<Token> tokens;
  std::size_t line = 1;
  for (std::size_t begin = 0; begin < text.size(); ++line) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view words = trim(text.substr(begin, end - begin));
    begin = end + 1;
    if (words.empty()) continue;
    const std::string place = fmt::format("{}: line {}", where, line);
    const std::size_t space = words.find(' ');
    std::int64_t rank = -1;
    if (space == std::string_view::npos || !parse_int(words.substr(space + 1), rank) || rank < 0 || rank >= 1 << 30)
      throw UserError("{}: a line of a tiktoken file is a token in base64, a space and its rank", place);
    tokens.push_back({from_base64(words.substr(0, space), place), rank});
  }
  return tokens;
}

// Joining two tokens is a merge wherever the result is a token.
std::vector<Merge> merges_of(const Vocabulary& vocabulary, std::int32_t first, const std::string& where) {
  std::vector<Merge> merges;
  for (auto id = first; id < vocabulary.size(); ++id) {
    const std::string_view text = vocabulary.text(id);
    if (vocabulary.find(text) != id) continue;
    if (text.size() > longest_cut_token)
      throw UserError("{}: the token {} has {} bytes; Weft reads tokens of at most {}", where, id, text.size(),
                      longest_cut_token);
    for (std::size_t i = 1; i < text.size(); ++i) {
      const std::int32_t left = vocabulary.find(text.substr(0, i)), right = vocabulary.find(text.substr(i));
      if (left != no_token && right != no_token) merges.push_back({left, right, id, static_cast<std::uint32_t>(id)});
    }
  }
  return merges;
}

// The names of `count` special tokens: those given, or Megatron's; then fillers.
std::vector<std::string> special_names(std::int64_t count, const std::vector<std::string>& given) {
  std::vector<std::string> names = given;
  if (given.empty()) names.assign(first_specials.begin(), first_specials.end());
  for (std::string_view needed : first_specials)
    if (std::find(names.begin(), names.end(), needed) == names.end())
      throw UserError("--special-tokens: must hold {}, too", needed);
  if (count < static_cast<std::int64_t>(names.size()))
    throw UserError("--tiktoken-num-special-tokens {}: must be at least {}, for {}", count, names.size(),
                    join(names, " "));
  for (auto i = static_cast<std::int64_t>(names.size()); i < count; ++i)
    names.push_back(fmt::format("<SPECIAL_{}>", i));
  std::vector<std::string> sorted = names;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) throw UserError("--special-tokens: {} is named twice", *twice);
  return names;
}

const char* pattern_of(std::string_view name) {
  for (std::size_t i = 0; i < tiktoken_patterns.size(); ++i)
    if (tiktoken_patterns[i] == name) return pattern_texts[i];
  const std::vector<std::string> known(tiktoken_patterns.begin(), tiktoken_patterns.end());
  throw UserError("--tiktoken-pattern: '{}' is not one of {}", name, join(known, ", "));
}

}  // namespace

std::unique_ptr<Tokenizer> parse_tiktoken(std::string_view text, const std::string& where,
                                          const TiktokenOptions& options) {
  const std::string_view begin = trim(text.substr(0, 200));
  const bool json = begin.starts_with('[') || begin.starts_with('{');
  const bool shifted = json || options.special_tokens >= 0 || !options.special.empty();
  const std::int64_t specials =
      options.special_tokens >= 0 ? options.special_tokens : (shifted ? megatron_specials : 0);
  std::int64_t most = options.vocabulary > 0 ? options.vocabulary : (json ? megatron_vocabulary : INT32_MAX);
  const std::vector<std::string> names =
      shifted ? special_names(specials, options.special) : std::vector<std::string>();
  if (most <= specials + 256)
    throw UserError("--vocab-size {}: leaves no place for the bytes beside {} special tokens", most, specials);

  PipelineParts parts;
  parts.where = where;
  const std::vector<Token> tokens = json ? tokens_of_json(text, where) : tokens_of_lines(text, where);
  std::vector<Vocabulary::Entry> entries;
  std::int64_t last = specials - 1;
  for (const Token& token : tokens) {
    if (token.rank + specials >= most) continue;  // a smaller vocabulary is the beginning of the file
    last = std::max(last, token.rank + specials);
    entries.push_back({token.bytes, static_cast<std::int32_t>(token.rank + specials), true});
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    entries.push_back({names[i], id, false});
    parts.added.push_back({names[i], id});
  }
  if (!shifted) {
    const auto id = static_cast<std::int32_t>(last + 1);
    entries.push_back({"<|endoftext|>", id, false});
    parts.added.push_back({"<|endoftext|>", id});
  }
  parts.vocabulary = Vocabulary(entries, where);
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    if (parts.vocabulary.find(std::string_view(&c, 1)) == no_token)
      throw UserError("{}: has no token for the byte 0x{:02x}; is it a tiktoken file?", where, byte);
  }
  for (const AddedToken& token : parts.added) {
    parts.added_texts.emplace_back(token.id, token.text);
    parts.special.push_back(token.id);
  }
  parts.eod = parts.added.front().id;
  for (const AddedToken& token : parts.added)
    if (shifted && token.text == "</s>") parts.eod = token.id;
  parts.merges = merges_of(parts.vocabulary, static_cast<std::int32_t>(specials), where);
  parts.rules.of_bytes = true;
  parts.rules.ignore_merges = true;
  const std::string name = !options.pattern.empty() ? options.pattern : json ? "v2" : "cl100k";
  parts.pre_tokenizer = PreTokenizer({SplitStep{Regex(pattern_of(name), RegexDialect::fancy, where)}, BytesStep{}});
  parts.decoder = Decoder({JoinBytesStep{}});
  return make_pipeline(std::move(parts));
}

std::unique_ptr<Tokenizer> read_tiktoken(const std::filesystem::path& file, const TiktokenOptions& options) {
  return parse_tiktoken(read_regular_file(file), file.string(), options);
}

}  // namespace weft
