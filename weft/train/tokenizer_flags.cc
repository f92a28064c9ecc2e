#include "weft/train/tokenizer_flags.h"

#include "weft/base/error.h"
#include "weft/data/tokenizers/tiktoken.h"

namespace weft {

Flag& add_tokenizer_flags(FlagTable& flags, TokenizerChoice& choice) {
  std::vector<std::pair<std::string, std::string>> types;
  for (const char* type : {"ByteTokenizer", "NullTokenizer", "HuggingFaceTokenizer", "SentencePieceTokenizer",
                           "GPTSentencePieceTokenizer", "Llama2Tokenizer", "TikTokenizer", "GPT2BPETokenizer"})
    types.emplace_back(type, type);
  Flag& type = flags.choice("--tokenizer-type", choice.type, std::move(types),
                            "ByteTokenizer: one token per byte, 257 ids. NullTokenizer: the data are ids below "
                            "vocab-size, and one more id ends "
                            "a document. The others are read from --tokenizer-model: tokenizer.json, a SentencePiece "
                            "model (three names for the "
                            "same), tiktoken's tokens, GPT-2's vocab.json and merges.txt.");
  type.standard("what --tokenizer-model is; NullTokenizer if --vocab-size is given, else ByteTokenizer");
  flags.add("--tokenizer-model", choice.model, "PATH", "The tokenizer's file, or a folder that holds it.");
  flags.add("--vocab-file", choice.vocab_file, "FILE", "vocab.json of GPT2BPETokenizer.");
  flags.add("--merge-file", choice.merge_file, "FILE", "merges.txt of GPT2BPETokenizer.");
  flags.add("--vocab-size", choice.vocab_size, "N", "Number of ids of NullTokenizer and TikTokenizer.")
      .at_least(1)
      .standard("the tokenizer's");
  std::vector<std::pair<std::string, std::string>> patterns;
  for (std::string_view pattern : tiktoken_patterns) patterns.emplace_back(pattern, pattern);
  flags
      .choice("--tiktoken-pattern", choice.tiktoken_pattern, std::move(patterns),
              "How TikTokenizer splits text. v1 and v2 are Megatron's.")
      .standard("v2 for Megatron's JSON, cl100k for plain text");
  flags
      .add("--tiktoken-num-special-tokens", choice.tiktoken_num_special_tokens, "N",
           "Special tokens of TikTokenizer, whose ids come before those of the file.")
      .at_least(7)
      .standard("1000 for Megatron's JSON, none for plain text");
  flags
      .add("--special-tokens", choice.special_tokens, "TOKEN",
           "Names of TikTokenizer's first special tokens; others are <SPECIAL_7> and so on.")
      .alias("--tiktoken-special-tokens")
      .standard("<unk> <s> </s> <mask> <pad> <cls> <sep>");
  return type;
}

std::string tokenizer_flags_problem(const TokenizerChoice& choice) {
  const bool null = choice.type == "NullTokenizer", tiktoken = choice.type == "TikTokenizer";
  const bool gpt2 = choice.type == "GPT2BPETokenizer", from_file = is_read_from_file(choice.type);
  if (null && choice.vocab_size < 1) return "--tokenizer-type NullTokenizer: needs --vocab-size N, the number of ids";
  if (choice.vocab_size > 0 && !null && !tiktoken && !(choice.type.empty() && !choice.model.empty()))
    return fmt::format("--vocab-size {}: {} has a vocabulary of its own; drop one of the two", choice.vocab_size,
                       choice.type);
  if (!choice.model.empty() && !from_file && !choice.type.empty())
    return fmt::format("--tokenizer-model {}: {} is read from no file; drop one of the two", choice.model, choice.type);
  if (!gpt2 && !(choice.vocab_file.empty() && choice.merge_file.empty()))
    return "--vocab-file, --merge-file: only --tokenizer-type GPT2BPETokenizer has them; drop them";
  if (gpt2 && !choice.model.empty() && !(choice.vocab_file.empty() && choice.merge_file.empty()))
    return "--tokenizer-model: --vocab-file and --merge-file name the tokenizer too; drop one of them";
  if (gpt2 && choice.model.empty() && (choice.vocab_file.empty() || choice.merge_file.empty()))
    return "--tokenizer-type GPT2BPETokenizer: needs --vocab-file vocab.json and --merge-file merges.txt, or "
           "--tokenizer-model tokenizer.json";
  if (from_file && !gpt2 && choice.model.empty())
    return fmt::format("--tokenizer-type {}: needs --tokenizer-model PATH, its file", choice.type);
  const bool may_be_tiktoken = tiktoken || (choice.type.empty() && !choice.model.empty());
  if (!may_be_tiktoken &&
      (!choice.tiktoken_pattern.empty() || choice.tiktoken_num_special_tokens >= 0 || !choice.special_tokens.empty()))
    return "--tiktoken-pattern, --tiktoken-num-special-tokens, --special-tokens: only TikTokenizer has them; drop them";
  return "";
}

void check_tokenizer_flags(const FlagTable& /*flags*/, TokenizerChoice& choice) {
  if (choice.type.empty() && choice.model.empty()) choice.type = "ByteTokenizer";
  if (const std::string problem = tokenizer_flags_problem(choice); !problem.empty()) throw UserError("{}", problem);
}

}  // namespace weft
