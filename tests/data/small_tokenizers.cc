#include "tests/data/small_tokenizers.h"

#include <cstdint>
#include <cstring>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "weft/base/json.h"
#include "weft/data/tokenizers/byte_letters.h"

namespace weft {
namespace {

Json step(const char* type) { return {{"type", type}}; }

Json added(int id, const char* text, bool normalized) {
  return {{"id", id},        {"content", text},   {"single_word", id % 2 == 1}, {"lstrip", true},
          {"rstrip", false}, {"special", id > 0}, {"normalized", normalized}};
}

void varint(std::string& bytes, std::uint64_t value) {
  for (; value >= 128; value >>= 7) bytes += static_cast<char>(value | 128);
  bytes += static_cast<char>(value);
}
void field(std::string& bytes, int number, std::uint64_t value) {
  varint(bytes, static_cast<std::uint64_t>(number) << 3);
  varint(bytes, value);
}
void field(std::string& bytes, int number, const std::string& text) {
  varint(bytes, static_cast<std::uint64_t>(number) << 3 | 2);
  varint(bytes, text.size());
  bytes += text;
}
void piece(std::string& model, const std::string& text, float score, int type) {
  std::string bytes;
  field(bytes, 1, text);
  varint(bytes, 2 << 3 | 5);
  bytes.append(reinterpret_cast<const char*>(&score), sizeof(score));
  if (type != 1) field(bytes, 3, static_cast<std::uint64_t>(type));
  field(model, 1, bytes);
}

// A tree of one rule, "a" -> "e": units of the root, of "a", and of its value.
std::string rules() {
  const std::uint32_t unit_of_root = 1 << 10, unit_of_a = 'a' | 1 << 8 | 1 << 10, value = 1u << 31;
  std::string units(256 * 4, '\0');
  const auto put = [&](std::size_t at, std::uint32_t unit) { std::memcpy(units.data() + 4 * at, &unit, 4); };
  put(0, unit_of_root);
  put(1 ^ 'a', unit_of_a);
  put(1 ^ 'a' ^ 1, value);
  const auto size = static_cast<std::uint32_t>(units.size());
  return std::string(reinterpret_cast<const char*>(&size), 4) + units + "e" + std::string(1, '\0');
}

std::string base64(unsigned char byte) {
  constexpr const char* digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  return {digits[byte >> 2], digits[(byte & 3) << 4], '=', '='};
}

}  // namespace

std::string small_byte_level_json() {
  const ByteLetters letters;
  Json vocabulary = Json::object();
  for (int byte = 0; byte < 256; ++byte) vocabulary[letters.to_letters(std::string(1, static_cast<char>(byte)))] = byte;
  for (const char* text : {"ca", "fe", "cafe", "\xc4\xa0x", "12"}) vocabulary[text] = vocabulary.size();
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", "\\p{N}{1,3}|[^\\s\\p{L}]?\\p{L}+|\\s+(?!\\S)|\\s"}}},
                      {"behavior", "MergedWithNext"},
                      {"invert", false}};
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", true}};
  const Json single = Json::array({{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}}}}});
  const Json file = {
      {"added_tokens", Json::array({added(261, "<s>", false), added(262, "</s>", true)})},
      {"normalizer",
       {{"type", "Sequence"}, {"normalizers", Json::array({step("NFKC"), step("Lowercase"), step("Strip")})}}},
      {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", Json::array({step("Digits"), split, bytes, split})}}},
      {"post_processor",
       {{"type", "TemplateProcessing"},
        {"single", single},
        {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {261}}, {"tokens", {"<s>"}}}}}}}},
      {"decoder", step("ByteLevel")},
      {"model",
       {{"type", "BPE"},
        {"ignore_merges", true},
        {"vocab", vocabulary},
        {"merges", Json::array({"c a", Json::array({"f", "e"}), Json::array({"ca", "fe"}), "\xc4\xa0 x", "1 2"})}}}};
  return file.dump();
}

std::string small_metaspace_json() {
  Json vocabulary = Json::object();
  for (const char* text : {"<unk>", "<s>", "</s>"}) vocabulary[text] = vocabulary.size();
  for (int byte = 0; byte < 256; ++byte) vocabulary[fmt::format("<0x{:02X}>", byte)] = vocabulary.size();
  for (const char* text : {"\xe2\x96\x81", "c", "a", "f", "ca",
                           "\xe2\x96\x81"
                           "ca",
                           "\xc3\xa9"})
    vocabulary[text] = vocabulary.size();
  const Json replace = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\xe2\x96\x81"}};
  const Json prepend = {{"type", "Prepend"}, {"prepend", "\xe2\x96\x81"}};
  const Json metaspace = {
      {"type", "Metaspace"}, {"replacement", "\xe2\x96\x81"}, {"prepend_scheme", "first"}, {"split", false}};
  const Json strip = {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}};
  const Json back = {{"type", "Replace"}, {"pattern", {{"String", "\xe2\x96\x81"}}}, {"content", " "}};
  const Json file = {
      {"added_tokens", Json::array({added(1, "<s>", false), added(2, "</s>", false)})},
      {"normalizer", {{"type", "Sequence"}, {"normalizers", Json::array({prepend, replace})}}},
      {"pre_tokenizer", metaspace},
      {"post_processor", {{"type", "RobertaProcessing"}, {"cls", {"<s>", 1}}, {"sep", {"</s>", 2}}}},
      {"decoder", {{"type", "Sequence"}, {"decoders", Json::array({back, step("ByteFallback"), step("Fuse"), strip})}}},
      {"model",
       {{"type", "BPE"},
        {"unk_token", "<unk>"},
        {"fuse_unk", true},
        {"byte_fallback", true},
        {"vocab", vocabulary},
        {"merges", Json::array({"c a", "\xe2\x96\x81 ca"})}}}};
  return file.dump();
}

std::string small_sentencepiece(bool bpe) {
  std::string model, trainer, normalizer;
  piece(model, "<unk>", 0, 2);
  piece(model, "<s>", 0, 3);
  piece(model, "</s>", 0, 3);
  piece(model, "x1", 0, 4);
  if (bpe)
    for (int byte = 0; byte < 256; ++byte) piece(model, fmt::format("<0x{:02X}>", byte), 0, 6);
  float score = 0;
  for (const char* text : {"ca",
                           "\xe2\x96\x81"
                           "c",
                           "caf", "\xe2\x96\x81", "c", "a", "f", "\xc3\xa9", "I", "t"})
    piece(model, text, score -= 1, 1);
  field(trainer, 3, bpe ? 2 : 1);
  field(trainer, 35, bpe ? 1 : 0);
  field(normalizer, 2, rules());
  field(normalizer, 3, 1);
  field(normalizer, 4, bpe ? 0 : 1);
  field(model, 2, trainer);
  field(model, 3, normalizer);
  return model;
}

std::string small_tiktoken() {
  std::string text;
  for (int byte = 0; byte < 256; ++byte) text += fmt::format("{} {}\n", base64(static_cast<unsigned char>(byte)), byte);
  return text + "Y2E= 256\nY2Fm 257\n";
}

std::string small_tiktoken_json() {
  Json list = Json::array();
  for (int byte = 0; byte < 256; ++byte)
    list.push_back({{"rank", byte}, {"token_bytes", base64(static_cast<unsigned char>(byte))}, {"token_str", "x"}});
  list.push_back({{"rank", 256}, {"token_bytes", "Y2E="}, {"token_str", "ca"}});
  return list.dump();
}

}  // namespace weft
