#include "weft/data/tokenizers/hugging_face_steps.h"

#include "weft/data/tokenizers/utf8.h"

namespace weft {

namespace {

constexpr const char* gpt2_pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Calls take(step) for the steps of a value in turn, those of Sequences inside too. `key`: where a Sequence has its list.
template <class Take>
void each_step(const Json& json, const std::string& place, const char* key, Take&& take) {
  if (json.is_null()) return;
  const JsonFields step(json, place);
  if (step.text("type") != "Sequence") return take(step);
  const Json& list = step.list(key);
  for (std::size_t i = 0; i < list.size(); ++i)
    each_step(list[i], fmt::format("{}[{}]", step.place_of(key), i), key, take);
}

[[noreturn]] void refuse(const JsonFields& step, const char* known) {
  throw UserError("{}: Weft has no {}; it has {}", step.place(), step.text("type"), known);
}

// {"String": "x"} or {"Regex": "x+"}.
Regex read_pattern(const JsonFields& step) {
  const std::string place = step.place_of("pattern");
  const JsonFields pattern(step.value("pattern"), place);
  if (pattern.has("Regex")) return Regex(pattern.text("Regex"), RegexDialect::oniguruma, place);
  return Regex::of_text(pattern.text("String"), place);
}

Regex regex(const char* pattern, const JsonFields& step) {
  return Regex(pattern, RegexDialect::oniguruma, step.place());
}

SplitBehavior read_behavior(const JsonFields& step, const char* standard) {
  const std::string name = step.text("behavior", standard);
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  throw UserError("{}: '{}' is none of Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous",
                  step.place_of("behavior"), name);
}

// The one character of a text.
char32_t read_character(const JsonFields& step, const char* key, const char* standard) {
  const std::string text = step.text(key, standard);
  std::size_t at = 0;
  const char32_t c = text.empty() ? 0 : next_character(text, at);
  if (text.empty() || at != text.size()) throw UserError("{}: must be one character", step.place_of(key));
  return c;
}

MetaspaceStep::Prepend read_prepend(const JsonFields& step) {
  const std::string scheme = step.text("prepend_scheme", step.flag("add_prefix_space", true) ? "always" : "never");
  if (scheme == "first") return MetaspaceStep::Prepend::first;
  if (scheme == "never") return MetaspaceStep::Prepend::never;
  if (scheme == "always") return MetaspaceStep::Prepend::always;
  throw UserError("{}: '{}' is none of first, never, always", step.place_of("prepend_scheme"), scheme);
}

}  // namespace

Normalizer read_normalizer(const Json& json, const std::string& place) {
  std::vector<NormalizerStep> steps;
  each_step(json, place, "normalizers", [&](const JsonFields& step) {
    const std::string& type = step.text("type");
    if (type == "NFC") {
      steps.emplace_back(std::make_shared<const NormalForm>(Form::nfc));
    } else if (type == "NFD") {
      steps.emplace_back(std::make_shared<const NormalForm>(Form::nfd));
    } else if (type == "NFKC") {
      steps.emplace_back(std::make_shared<const NormalForm>(Form::nfkc));
    } else if (type == "NFKD") {
      steps.emplace_back(std::make_shared<const NormalForm>(Form::nfkd));
    } else if (type == "Lowercase") {
      steps.emplace_back(std::make_shared<const Lowercase>());
    } else if (type == "StripAccents") {
      steps.emplace_back(ReplaceMatches{regex("\\p{M}+", step), ""});
    } else if (type == "Strip") {
      steps.emplace_back(StripSpaces{step.flag("strip_left", true), step.flag("strip_right", true)});
    } else if (type == "Replace") {
      steps.emplace_back(ReplaceMatches{read_pattern(step), step.text("content")});
    } else if (type == "Prepend") {
      steps.emplace_back(PrependText{step.text("prepend")});
    } else {
      refuse(step, "NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, Replace, Prepend, Sequence");
    }
  });
  return Normalizer(std::move(steps));
}

PreTokenizer read_pre_tokenizer(const Json& json, const std::string& place, bool& of_bytes) {
  std::vector<PreTokenizerStep> steps;
  const auto split = [&](Regex pattern, SplitBehavior behavior, bool invert = false) {
    steps.emplace_back(SplitStep{std::move(pattern), behavior, invert});
  };
  each_step(json, place, "pretokenizers", [&](const JsonFields& step) {
    const std::string& type = step.text("type");
    if (type == "ByteLevel") {
      if (of_bytes) throw UserError("{}: a second ByteLevel", step.place());
      if (step.flag("add_prefix_space", true)) steps.emplace_back(PrefixSpaceStep{});
      if (step.flag("use_regex", true)) split(regex(gpt2_pattern, step), SplitBehavior::isolated);
      steps.emplace_back(BytesStep{});
      of_bytes = true;
    } else if (type == "Split") {
      split(read_pattern(step), read_behavior(step, "Removed"), step.flag("invert", false));
    } else if (type == "Digits") {
      split(regex("\\p{N}", step),
            step.flag("individual_digits", false) ? SplitBehavior::isolated : SplitBehavior::contiguous);
    } else if (type == "Punctuation") {
      split(regex("[!-/:-@\\[-`{-~\\p{P}]", step), read_behavior(step, "Isolated"));
    } else if (type == "Whitespace") {
      // its own pattern is run by Rust's engine
      split(Regex("\\w+|[^\\w\\s]+", RegexDialect::fancy, step.place()), SplitBehavior::removed, true);
    } else if (type == "WhitespaceSplit") {
      split(regex("\\s", step), SplitBehavior::removed);
    } else if (type == "CharDelimiterSplit") {
      split(Regex::of_text(text_of_character(read_character(step, "delimiter", "")), step.place()),
            SplitBehavior::removed);
    } else if (type == "Metaspace") {
      if (of_bytes) throw UserError("{}: Metaspace after ByteLevel has no spaces to replace", step.place());
      const std::string symbol = text_of_character(read_character(step, "replacement", "\xe2\x96\x81"));
      steps.emplace_back(MetaspaceStep{read_prepend(step), symbol});
      if (step.flag("split", true)) split(Regex::of_text(symbol, step.place()), SplitBehavior::merged_with_next);
    } else {
      refuse(step,
             "ByteLevel, Split, Digits, Punctuation, Whitespace, WhitespaceSplit, CharDelimiterSplit, Metaspace, "
             "Sequence");
    }
  });
  return PreTokenizer(std::move(steps));
}

Decoder read_decoder(const Json& json, const std::string& place) {
  std::vector<DecoderStep> steps;
  each_step(json, place, "decoders", [&](const JsonFields& step) {
    const std::string& type = step.text("type");
    if (type == "ByteLevel") {
      steps.emplace_back(JoinBytesStep{});
    } else if (type == "ByteFallback") {
      steps.emplace_back(ByteTokensStep{});
    } else if (type == "Fuse") {
      steps.emplace_back(JoinStep{});
    } else if (type == "Strip") {
      steps.emplace_back(
          StripTokenStep{read_character(step, "content", " "), step.number("start", 0), step.number("stop", 0)});
    } else if (type == "Metaspace") {
      steps.emplace_back(UnmetaspaceStep{read_character(step, "replacement", "\xe2\x96\x81"),
                                         read_prepend(step) != MetaspaceStep::Prepend::never});
    } else if (type == "Replace") {
      steps.emplace_back(ReplaceMatches{read_pattern(step), step.text("content")});
    } else {
      refuse(step, "ByteLevel, ByteFallback, Fuse, Strip, Metaspace, Replace, Sequence");
    }
  });
  return Decoder(std::move(steps));
}

}  // namespace weft
