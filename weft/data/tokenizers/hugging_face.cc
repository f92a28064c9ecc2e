#include "weft/data/tokenizers/hugging_face.h"

#include <array>
#include <set>

#include "weft/base/file.h"
#include "weft/data/tokenizers/hugging_face_steps.h"
#include "weft/data/tokenizers/pipeline.h"
#include "weft/data/tokenizers/utf8.h"

namespace weft {

namespace {

constexpr std::array<const char*, 5> known_ends = {"<|endoftext|>", "</s>", "<|end_of_text|>",
                                                   "<\xef\xbd\x9c"
                                                   "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>",
                                                   "<eos>"};

// The model's vocabulary while it is read: texts as in the file, and as the tokenizer has them.
class Model {
 public:
  Model(const JsonFields& fields, bool of_bytes) : fields_(fields), of_bytes_(of_bytes) {
    const std::string type = fields.text("type", "BPE");
    if (type != "BPE")
      throw UserError(
          "{}: Weft encodes with BPE, and the model is {}; its SentencePiece model may be at hand "
          "(--tokenizer-type SentencePieceTokenizer --tokenizer-model FILE.model)",
          fields.place_of("type"), type);
    if (fields.has("dropout") && (!fields.value("dropout").is_number() || fields.value("dropout") != 0))
      throw UserError("{}: Weft encodes without dropout; set it to null", fields.place_of("dropout"));
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (fields.has(key) && !fields.text(key).empty())
        throw UserError("{}: Weft has no tokens that are marked as parts of words", fields.place_of(key));
    read_vocabulary();
  }

  const Vocabulary& vocabulary() const { return vocabulary_; }
  Vocabulary take_vocabulary() { return std::move(vocabulary_); }
  std::int32_t find(std::string_view text) const {
    std::string bytes;
    if (!of_bytes_) return vocabulary_.find(text);
    if (letters_.to_bytes(text, bytes)) return vocabulary_.find(bytes);
    const auto found = others_.find(text);
    return found == others_.end() ? no_token : found->second;
  }
  std::vector<Merge> read_merges() const {
    const Json& list = fields_.list("merges");
    std::vector<Merge> merges;
    merges.reserve(list.size());
    std::string whole;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const auto place = [&] { return fmt::format("{}[{}]", fields_.place_of("merges"), i); };
      const auto [left, right] = parts_of(list[i], place);
      (whole = left) += right;
      const Merge merge{find(left), find(right), find(whole), static_cast<std::uint32_t>(i)};
      if (merge.left == no_token || merge.right == no_token || merge.result == no_token)
        throw UserError("{}: joins \"{}\" and \"{}\", but the vocabulary has no \"{}\"", place(), left, right,
                        merge.left == no_token    ? left
                        : merge.right == no_token ? right
                                                  : std::string_view(whole));
      // A token whose letters do not all stand for bytes occurs in no text.
      if (!of_bytes_ || (vocabulary_.findable(merge.left) && vocabulary_.findable(merge.right)))
        merges.push_back(merge);
    }
    return merges;
  }
  BpeRules read_rules() const {
    BpeRules rules;
    rules.of_bytes = of_bytes_;
    rules.ignore_merges = fields_.flag("ignore_merges", false);
    rules.fuse_unknown = fields_.flag("fuse_unk", false);
    if (fields_.has("unk_token")) {
      rules.unknown = find(fields_.text("unk_token"));
      if (rules.unknown == no_token)
        throw UserError("{}: the vocabulary has no \"{}\"", fields_.place_of("unk_token"), fields_.text("unk_token"));
    }
    if (!fields_.flag("byte_fallback", false) || of_bytes_) return rules;
    for (std::size_t byte = 0; byte < 256; ++byte) rules.byte_tokens[byte] = find(fmt::format("<0x{:02X}>", byte));
    return rules;
  }

 private:
  void read_vocabulary() {
    const Json& json = fields_.value("vocab");
    const std::string place = fields_.place_of("vocab");
    if (!json.is_object()) throw UserError("{}: must be an object, and is {}", place, json.type_name());
    std::vector<std::string> bytes(of_bytes_ ? json.size() : 0);
    std::vector<Vocabulary::Entry> entries;
    entries.reserve(json.size());
    for (const auto& [text, id] : json.items()) {
      Vocabulary::Entry entry{text, JsonFields::id(id, place), true};
      if (of_bytes_) {
        std::string& own = bytes[entries.size()];
        entry.findable = letters_.to_bytes(text, own);
        if (entry.findable) {
          entry.text = own;
        } else {
          others_.emplace(text, entry.id);
        }
      }
      entries.push_back(entry);
    }
    if (entries.empty()) throw UserError("{}: there is no token", place);
    vocabulary_ = Vocabulary(entries, place);
  }

  // "a b" or ["a", "b"].
  template <class Place>
  static std::pair<std::string_view, std::string_view> parts_of(const Json& json, const Place& place) {
    if (json.is_array() && json.size() == 2 && json[0].is_string() && json[1].is_string())
      return {json[0].get_ref<const std::string&>(), json[1].get_ref<const std::string&>()};
    if (json.is_string()) {
      const std::string_view both = json.get_ref<const std::string&>();
      const std::size_t space = both.find(' ');
      if (space != std::string_view::npos && both.find(' ', space + 1) == std::string_view::npos)
        return {both.substr(0, space), both.substr(space + 1)};
    }
    throw UserError("{}: must be two tokens", place());
  }

  const JsonFields& fields_;
  bool of_bytes_;
  ByteLetters letters_;
  Vocabulary vocabulary_;
  std::map<std::string, std::int32_t, std::less<>> others_;  // whose letters do not all stand for bytes
};

void read_added_tokens(const JsonFields& file, const Model& model, PipelineParts& parts) {
  if (!file.has("added_tokens")) return;
  RegexScratch scratch;
  std::set<std::int32_t> ids;
  const std::int64_t most =
      2 * (model.vocabulary().size() + static_cast<std::int64_t>(file.list("added_tokens").size()));
  file.each("added_tokens", [&](const JsonFields& fields) {
    AddedToken token;
    token.text = fields.text("content");
    if (token.text.empty()) return;
    token.id = JsonFields::id(fields.value("id"), fields.place_of("id"));
    if (const std::int32_t own = model.find(token.text); own != no_token) token.id = own;
    if (token.id > most + 65536)
      throw UserError("{}: {} is far above the number of tokens", fields.place_of("id"), token.id);
    if (!ids.insert(token.id).second)
      throw UserError("{}: {} is the id of another added token", fields.place_of("id"), token.id);
    token.single_word = fields.flag("single_word", false);
    token.strip_left = fields.flag("lstrip", false);
    token.strip_right = fields.flag("rstrip", false);
    const bool normalized = fields.flag("normalized", true);
    if (normalized) {
      bool at_beginning = true;
      try {
        token.text = parts.normalizer.apply(token.text, scratch, at_beginning);
      } catch (const UserError& error) {
        throw UserError("{}: {}", fields.place(), error.what());
      }
    }
    // A token that decodes to something else than its name is not left out with the special ones.
    if (fields.flag("special", false) && token.text == fields.text("content")) parts.special.push_back(token.id);
    parts.added_texts.emplace_back(token.id, token.text);
    (normalized ? parts.added_after_normalizer : parts.added).push_back(std::move(token));
  });
}

std::int32_t find_token(std::string_view text, const JsonFields& file, const Model& model) {
  std::int32_t id = model.find(text);
  if (file.has("added_tokens"))
    file.each("added_tokens", [&](const JsonFields& token) {
      if (id == no_token && token.text("content") == text) id = JsonFields::id(token.value("id"), token.place_of("id"));
    });
  return id;
}

// TemplateProcessing's "single", or Bert's and Roberta's pair: the special tokens around a text.
void read_template(const JsonFields& step, PipelineParts& parts) {
  const std::string& type = step.text("type");
  if (type == "Sequence") {
    step.each("processors", [&](const JsonFields& inner) { read_template(inner, parts); });
  } else if (type == "TemplateProcessing") {
    bool after = false;
    step.each("single", [&](const JsonFields& item) {
      if (item.has("Sequence")) {
        after = true;
        return;
      }
      const std::string name = JsonFields(item.value("SpecialToken"), item.place_of("SpecialToken")).text("id");
      const JsonFields tokens(step.value("special_tokens"), step.place_of("special_tokens"));
      const JsonFields token(tokens.value(name.c_str()), tokens.place_of(name.c_str()));
      for (const Json& id : token.list("ids"))
        (after ? parts.after : parts.before).push_back(JsonFields::id(id, token.place_of("ids")));
    });
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    for (const char* key : {"cls", "sep"}) {
      const Json& pair = step.list(key);
      if (pair.size() != 2) throw UserError("{}: must be a token and its id", step.place_of(key));
      (std::string_view(key) == "cls" ? parts.before : parts.after)
          .push_back(JsonFields::id(pair[1], step.place_of(key)));
    }
  } else if (type != "ByteLevel") {  // which moves offsets only
    throw UserError(
        "{}: Weft has no {}; it has TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel, "
        "Sequence",
        step.place(), type);
  }
}

std::unique_ptr<Tokenizer> build(const Json& json, const std::string& where,
                                 const std::optional<std::string>& end_of_document) {
  if (!json.is_object()) throw UserError("{}: must be an object, and is {}", where, json.type_name());
  const auto place = [&](const char* key) { return where + ": " + key; };
  const JsonFields file(json, where + ":");
  PipelineParts parts;
  parts.where = where;
  parts.normalizer = read_normalizer(file.value("normalizer"), place("normalizer"));
  bool of_bytes = false;
  parts.pre_tokenizer = read_pre_tokenizer(file.value("pre_tokenizer"), place("pre_tokenizer"), of_bytes);
  parts.decoder = read_decoder(file.value("decoder"), place("decoder"));
  const JsonFields model_fields(file.value("model"), place("model"));
  Model model(model_fields, of_bytes);
  parts.rules = model.read_rules();
  parts.merges = model.read_merges();
  read_added_tokens(file, model, parts);
  if (file.has("post_processor"))
    read_template(JsonFields(file.value("post_processor"), place("post_processor")), parts);
  if (end_of_document) {
    parts.eod = find_token(*end_of_document, file, model);
    if (parts.eod == no_token)
      throw UserError("{}: has no token \"{}\", which the file beside it names as eos_token", where, *end_of_document);
  } else {
    for (const char* name : known_ends)
      if (parts.eod == no_token) parts.eod = find_token(name, file, model);
  }
  parts.vocabulary = model.take_vocabulary();
  std::unique_ptr<Tokenizer> tokenizer = make_pipeline(std::move(parts));
  for (const auto& ids : {tokenizer->special_before(), tokenizer->special_after()})
    for (std::int32_t id : ids)
      if (id >= tokenizer->vocabulary_size())
        throw UserError("{}: post_processor: the id {} is outside the vocabulary of {}", where, id,
                        tokenizer->vocabulary_size());
  return tokenizer;
}

// A token by name, or as an object with its content.
std::optional<std::string> token_name(const Json& json) {
  if (json.is_string()) return json.get<std::string>();
  if (json.is_object() && json.contains("content") && json["content"].is_string())
    return json["content"].get<std::string>();
  return std::nullopt;
}

}  // namespace

std::unique_ptr<Tokenizer> parse_hugging_face_tokenizer(std::string_view text, const std::string& where,
                                                        const std::optional<std::string>& end_of_document) {
  return build(parse_json(text, where), where, end_of_document);
}

std::unique_ptr<Tokenizer> read_hugging_face_tokenizer(const std::filesystem::path& file) {
  std::optional<std::string> end;
  for (const char* beside : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const std::filesystem::path path = file.parent_path() / beside;
    if (end || !is_there(path)) continue;
    const Json json = read_json(path);
    if (json.is_object() && json.contains("eos_token")) end = token_name(json["eos_token"]);
  }
  return parse_hugging_face_tokenizer(read_regular_file(file), file.string(), end);
}

std::unique_ptr<Tokenizer> read_gpt2_tokenizer(const std::filesystem::path& vocabulary,
                                               const std::filesystem::path& merges) {
  Json file = Json::object();
  file["model"] = {{"type", "BPE"}, {"vocab", read_json(vocabulary)}, {"merges", Json::array()}};
  const std::string text = read_regular_file(merges);
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    if (line.ends_with('\r')) line.pop_back();
    const bool heading = line.starts_with("#version");
    if (!heading && !line.empty()) file["model"]["merges"].push_back(line);
    begin = end + 1;
  }
  if (first_invalid_utf8(text) != std::string::npos) throw UserError("{}: is not UTF-8", merges.string());
  const Json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  file["pre_tokenizer"] = byte_level;
  file["decoder"] = byte_level;
  const Json& words = file["model"]["vocab"];
  if (words.is_object() && words.contains(known_ends[0]))
    file["added_tokens"] = Json::array(
        {{{"id", words[known_ends[0]]}, {"content", known_ends[0]}, {"normalized", false}, {"special", true}}});
  return build(file, vocabulary.string() + " and " + merges.string(), std::nullopt);
}

}  // namespace weft
