#include "apps/weft/tokenize_command.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/weft/progress.h"
#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/json.h"
#include "weft/base/text.h"
#include "weft/data/indexed_dataset_writer.h"
#include "weft/data/stories.h"
#include "weft/data/tokenizer.h"
#include "weft/train/flags.h"

namespace weft {
namespace {

enum class DocumentsAre : std::uint8_t { blank_lines, lines, whole };

struct Request {
  std::string input, prefix, tokenizer_type = "ByteTokenizer", stories_text;
  std::size_t stories = 0;  // bytes; 0: the input is a file
  DocumentsAre documents = DocumentsAre::blank_lines;
  std::int64_t seed = 1, vocabulary = 0;
  std::vector<std::string> key_lists, keys = {"text"};
  bool append_eod = false, json = false, json_lines = false;
};

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

void add_flags(FlagTable& flags, Request& request) {
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
  flags.choice("--tokenizer-type", request.tokenizer_type,
               {{"ByteTokenizer", std::string("ByteTokenizer")}, {"NullTokenizer", std::string("NullTokenizer")}},
               "ByteTokenizer: one token per byte, 257 ids. NullTokenizer: whole numbers separated by blanks, with "
               "--vocab-size.");
  flags.add("--vocab-size", request.vocabulary, "N", "Ids of NullTokenizer.").at_least(1).standard("the tokenizer's");
  flags.add("--append-eod", request.append_eod, "End each document with the end-of-document token.");
  flags.choice(
      "--documents", request.documents,
      {{"blank-lines", DocumentsAre::blank_lines}, {"lines", DocumentsAre::lines}, {"whole", DocumentsAre::whole}},
      "What separates the documents of a text. Without --append-eod the separators stay in the text, so the "
      "documents one after another are the file.");
  flags
      .add("--json-keys", request.key_lists, "KEYS",
           "Of JSON lines: the key that holds the text. With several, A,B, each has files of its own, "
           "PREFIX_KEY_document.bin and .idx.")
      .each()
      .standard("text");
  flags.add("--json", request.json, "Prints a summary as JSON.");
}

void check(Request& request, const FlagTable& flags) {
  if (flags.is_set("--input") == flags.is_set("--stories")) {
    throw UserError("weft tokenize: give either --input FILE or --stories SIZE (see weft tokenize --help)");
  }
  if (request.prefix.empty()) {
    throw UserError("weft tokenize: give --output-prefix PREFIX: the files are PREFIX.bin and PREFIX.idx");
  }
  const bool numbers = request.tokenizer_type == "NullTokenizer";
  if (numbers != flags.is_set("--vocab-size")) {
    throw UserError(numbers ? "--tokenizer-type NullTokenizer: needs --vocab-size N, the number of ids"
                            : "--vocab-size: ByteTokenizer has a vocabulary of its own; drop the flag");
  }
  if (flags.is_set("--seed") && request.stories == 0) throw UserError("--seed: decides --stories only; drop the flag");
  if (numbers && request.stories > 0) {
    throw UserError("--stories: stories are text, not numbers; drop --tokenizer-type NullTokenizer");
  }
  request.json_lines = request.input.ends_with(".jsonl") || request.input.ends_with(".json");
  if (request.json_lines && flags.is_set("--documents")) {
    throw UserError("--documents: in JSON lines each line is a document; drop the flag");
  }
  if (request.key_lists.empty()) return;
  if (!request.json_lines) throw UserError("--json-keys: only JSON lines (FILE.jsonl) have keys; drop the flag");
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

class Job {
 public:
  explicit Job(const Request& request)
      : request_(request), tokenizer_(make_tokenizer(request.tokenizer_type, request.vocabulary)) {
    for (const std::string& key : request.keys) {
      const std::string prefix =
          request.keys.size() == 1 ? request.prefix : fmt::format("{}_{}_document", request.prefix, key);
      writers_.push_back(std::make_unique<IndexedDatasetWriter>(prefix, tokenizer_->vocabulary_size()));
    }
  }

  void read(std::istream& in, double total, const std::string& name) {
    Progress progress("tokenized", total);
    std::string line;
    name_ = name;
    for (line_ = 1; std::getline(in, line); ++line_) {
      const bool ended = !in.eof();  // the last line may lack its end
      bytes_ += line.size() + ended;
      if (request_.json_lines) {
        add_json_line(line, fmt::format("{}:{}", name, line_));
      } else {
        add_text_line(line, ended);
      }
      progress.at(static_cast<double>(bytes_));
    }
    if (in.bad()) throw RunError("cannot read {}: {}", name, std::strerror(errno));
    end_text_document();
    seconds_ = progress.seconds_so_far();
  }

  void finish() {
    if (writers_[0]->documents() == 0) throw UserError("weft tokenize: there is no text to write");
    for (const auto& writer : writers_) writer->finish();
  }

  void report(std::FILE* out) const {
    if (request_.json) {
      Json files = Json::array();
      for (const auto& writer : writers_) {
        files.push_back({{"bin", writer->token_path().string()},
                         {"idx", writer->index_path().string()},
                         {"documents", writer->documents()},
                         {"tokens", writer->tokens()},
                         {"dtype", name_of(writer->token_type())}});
      }
      const Json summary = {{"tokenizer", request_.tokenizer_type},
                            {"vocabulary_size", tokenizer_->vocabulary_size()},
                            {"eod", tokenizer_->eod()},
                            {"append_eod", request_.append_eod},
                            {"input_bytes", bytes_},
                            {"seconds", seconds_},
                            {"files", files}};
      fmt::print(out, "{}\n", summary.dump());
      return;
    }
    for (const auto& writer : writers_) {
      fmt::print(out, "{}: {} documents, {} tokens of {} ids as {}\n", writer->token_path().string(),
                 writer->documents(), writer->tokens(), tokenizer_->vocabulary_size(), name_of(writer->token_type()));
    }
  }

 private:
  // Lines gather in pending_ until a document is whole; its separator stays only where no token stands for it.
  void add_text_line(const std::string& line, bool ended) {
    const bool blank = line.empty() || line == "\r";
    if (request_.documents == DocumentsAre::blank_lines && !blank && after_blank_) end_text_document();
    after_blank_ = blank;
    if (pending_.empty()) first_line_ = line_;
    pending_ += line;
    if (ended) pending_ += '\n';
    if (request_.documents == DocumentsAre::lines) end_text_document();
  }

  void end_text_document() {
    const std::string where = fmt::format("{}, document at line {}", name_, first_line_);
    add_document(*writers_[0], std::exchange(pending_, ""), where);
  }

  void add_json_line(const std::string& line, const std::string& where) {
    if (trim(line).empty()) return;
    const Json object = parse_json(line, where);
    for (std::size_t i = 0; i < writers_.size(); ++i) {
      const std::string& key = request_.keys[i];
      const auto found = object.is_object() ? object.find(key) : object.end();
      if (!object.is_object() || found == object.end() || !found->is_string()) {
        throw UserError("{}: no text under the key \"{}\" (--json-keys)", where, key);
      }
      add_document(*writers_[i], found->get<std::string>(), where);
    }
  }

  // A tokenizer's errors do not name the document; `where` does.
  void add_document(IndexedDatasetWriter& writer, std::string_view text, const std::string& where) {
    if (request_.append_eod && !request_.json_lines && request_.documents != DocumentsAre::whole) {
      text = text.substr(0, text.find_last_not_of("\r\n") + 1);
    }
    std::vector<std::int32_t> ids;
    try {
      ids = tokenizer_->encode(text);
    } catch (const UserError& error) {
      throw UserError("{}: {}", where, error.what());
    }
    if (ids.empty()) return;  // a document without tokens is left out
    if (request_.append_eod) ids.push_back(tokenizer_->eod());
    writer.add_document(ids);
  }

  const Request& request_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<std::unique_ptr<IndexedDatasetWriter>> writers_;
  std::string name_, pending_;
  std::int64_t line_ = 0, first_line_ = 0;  // read now, of pending_
  bool after_blank_ = false;
  std::size_t bytes_ = 0;
  double seconds_ = 0;
};

}  // namespace

int run_tokenize_command(std::span<const std::string> args, std::FILE* out) {
  Request request;
  FlagTable flags("weft tokenize", "Writes Megatron token files: PREFIX.bin (tokens) and PREFIX.idx (index).");
  add_flags(flags, request);
  flags.apply(flags.scan(args));
  if (flags.help_wanted()) {
    fmt::print(out, "{}", flags.help());
    return 0;
  }
  check(request, flags);
  Job job(request);
  if (request.stories > 0) {
    const std::string text = write_stories(static_cast<std::uint64_t>(request.seed), request.stories);
    std::istringstream in(text);
    job.read(in, static_cast<double>(text.size()), "stories");
    write_file_atomically(request.prefix + ".txt", text);
  } else {
    std::error_code error;
    const auto size = std::filesystem::file_size(request.input, error);
    std::ifstream in(request.input, std::ios::binary);
    if (error || !in) {
      throw UserError("cannot read {}: {}", request.input, error ? error.message() : std::strerror(errno));
    }
    job.read(in, static_cast<double>(size), request.input);
  }
  job.finish();
  job.report(out);
  return 0;
}

}  // namespace weft
