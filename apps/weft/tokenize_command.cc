#include "apps/weft/tokenize_command.h"

#include <algorithm>

#include <fmt/format.h>

#include "apps/weft/tokenize_files.h"
#include "apps/weft/tokenize_lines.h"
#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/train/flags.h"
#include "weft/train/tokenizer_flags.h"

namespace weft {
namespace {

// "64K", "10M", "1G", "1000": bytes.
std::size_t parse_size(const std::string& text) {
  const std::size_t unit = std::string_view("KMG").find(text.empty() ? ' ' : text.back());
  const std::string_view digits = std::string_view(text).substr(0, text.size() - (unit != std::string_view::npos));
  std::int64_t number = 0;
  const int shift = unit == std::string_view::npos ? 0 : 10 * (static_cast<int>(unit) + 1);
  if (!parse_int(digits, number) || number < 1 || number > (std::int64_t{1} << 46) >> shift) {
    throw UserError("--stories {} is not a size; write bytes, or 64K, 10M, 1G", text);
  }
  return static_cast<std::size_t>(number) << shift;
}

void add_flags(FlagTable& flags, TokenizeRequest& request) {
  flags.further_words_mean("the text to read is --input FILE");
  flags.add("--input", request.input, "FILE", "A text, or JSON lines where the name ends in .jsonl or .json.");
  flags.custom(
      "--stories", "SIZE",
      [&request](const std::string& text) {
        request.stories = parse_size(text);
        request.stories_text = text;
      },
      [&request] { return request.stories_text; },
      "Instead: so many bytes of generated stories (64K, 10M), also written to PREFIX.txt.");
  flags.add("--seed", request.seed, "N", "Decides the stories.")
      .at_least(0)
      .at_most(4294967295.0)
      .limited_to(4294967295.0);
  flags.add("--output-prefix", request.prefix, "PREFIX", "Where the files go: PREFIX.bin and PREFIX.idx.");
  add_tokenizer_flags(flags, request.tokenizer);
  flags.add("--append-eod", request.append_eod, "End each document with the end-of-document token.");
  flags.choice(
      "--documents", request.documents,
      {{"blank-lines", DocumentsAre::blank_lines}, {"lines", DocumentsAre::lines}, {"whole", DocumentsAre::whole}},
      "What separates the documents of a text. Without --append-eod the separators stay in the text, so the "
      "documents one after another are the file.");
  flags
      .add("--json-keys", request.key_lists, "KEYS",
           "Of JSON lines: the keys, A,B, that hold texts. Each has files of its own, named as Megatron names them: "
           "PREFIX_KEY_document.bin and .idx.")
      .each()
      .standard("text, into PREFIX.bin and .idx");
  flags.add(
      "--add-special-tokens", request.add_special_tokens,
      "Put the tokens around each text that the tokenizer's template has, as Megatron's HuggingFaceTokenizer does.");
  flags.add("--threads", request.threads, "N", "Threads that encode.")
      .alias("--workers")
      .at_least(1)
      .at_most(1024)
      .standard("one per core");
  flags.add("--overwrite", request.overwrite, "Replace files that exist.");
  flags.add("--json", request.json, "Prints a summary as JSON.");
  flags.section("Ids on standard output");
  flags.add("--print-ids", request.print_ids,
            "Write no files: read lines such as {\"text\": \"...\"} from standard input, and print the ids of each as "
            "a list.");
  flags.add("--decode", request.decode,
            "The way back: read such lists, and print a line {\"text\": \"...\"} for each.");
  flags.add("--skip-special-tokens", request.skip_special_tokens, "Leave special tokens out of the texts.");
}

// Standard input to standard output.
void check_lines(const TokenizeRequest& request, const FlagTable& flags) {
  const std::string mode = request.decode ? "--decode" : "--print-ids";
  if (request.decode && request.print_ids) throw UserError("--decode: is the way back from --print-ids; drop one");
  for (const char* flag :
       {"--input", "--stories", "--seed", "--output-prefix", "--documents", "--overwrite", "--json", "--threads"})
    if (flags.is_set(flag))
      throw UserError("{}: {} reads standard input and writes standard output; drop the flag", flag, mode);
  for (const char* flag : {"--append-eod", "--add-special-tokens"})
    if (request.decode && flags.is_set(flag)) throw UserError("{}: is for --print-ids, not --decode; drop it", flag);
  if (request.skip_special_tokens && !request.decode)
    throw UserError("--skip-special-tokens: is for --decode; drop it");
  if (request.keys.size() > 1) throw UserError("--json-keys: {} takes one key", mode);
}

void read_keys(TokenizeRequest& request) {
  if (request.key_lists.empty()) return;
  request.keys.clear();
  for (const std::string& list : request.key_lists) {
    for (const std::string& key : split(list, ',')) {
      if (key.empty()) throw UserError("--json-keys {}: a key is empty", list);
      if (std::find(request.keys.begin(), request.keys.end(), key) != request.keys.end())
        throw UserError("--json-keys: '{}' is named twice; each key has files of its own", key);
      request.keys.push_back(key);
    }
  }
}

void check(TokenizeRequest& request, const FlagTable& flags) {
  check_tokenizer_flags(flags, request.tokenizer);
  read_keys(request);
  if (request.print_ids || request.decode) return check_lines(request, flags);
  if (request.skip_special_tokens) throw UserError("--skip-special-tokens: is for --decode; drop it");
  if (flags.is_set("--input") == flags.is_set("--stories")) {
    throw UserError("weft tokenize: give either --input FILE or --stories SIZE (see weft tokenize --help)");
  }
  if (request.prefix.empty()) {
    throw UserError("weft tokenize: give --output-prefix PREFIX: the files are PREFIX.bin and PREFIX.idx");
  }
  const bool numbers = request.tokenizer.type == "NullTokenizer";
  if (flags.is_set("--seed") && request.stories == 0) throw UserError("--seed: decides --stories only; drop the flag");
  if (numbers && request.stories > 0) {
    throw UserError("--stories: stories are text, not numbers; drop --tokenizer-type NullTokenizer");
  }
  request.json_lines = request.input.ends_with(".jsonl") || request.input.ends_with(".json");
  if (request.json_lines && flags.is_set("--documents")) {
    throw UserError("--documents: in JSON lines each line is a document; drop the flag");
  }
  if (!request.key_lists.empty() && !request.json_lines)
    throw UserError("--json-keys: only JSON lines (FILE.jsonl) have keys; drop the flag");
}

// For a caller that must know where a document ends.
void require_eod(const Tokenizer& tokenizer) {
  if (tokenizer.eod() < 0)
    throw UserError(
        "--append-eod: the tokenizer names no token that ends a document; put a tokenizer_config.json with its "
        "eos_token "
        "beside it");
}

}  // namespace

int run_tokenize_command(std::span<const std::string> args, std::FILE* out, std::istream& in) {
  TokenizeRequest request;
  FlagTable flags(
      "weft tokenize",
      "Writes Megatron token files, PREFIX.bin (tokens) and PREFIX.idx (index); or ids to standard output.");
  add_flags(flags, request);
  flags.apply(flags.scan(args));
  if (flags.help_wanted()) {
    fmt::print(out, "{}", flags.help());
    return 0;
  }
  check(request, flags);
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(request.tokenizer);
  if (request.append_eod) require_eod(*tokenizer);
  if (&in == &std::cin) std::ios::sync_with_stdio(false);  // else it is read letter by letter
  if (request.print_ids) {
    print_ids(request, *tokenizer, in, out);
  } else if (request.decode) {
    print_texts(request, *tokenizer, in, out);
  } else {
    tokenize_files(request, *tokenizer, out);
  }
  return 0;
}

}  // namespace weft
