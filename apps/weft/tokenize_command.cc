#include "apps/weft/tokenize_command.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "apps/weft/explain_arguments.h"
#include "weft/base/error.h"
#include "weft/base/json.h"
#include "weft/base/text.h"
#include "weft/data/indexed_dataset_writer.h"
#include "weft/data/stories.h"
#include "weft/data/tokenizer.h"

namespace weft {
namespace {

constexpr std::string_view help_text =
    R"(weft tokenize --input FILE --output-prefix P [OPTIONS]
weft tokenize --stories SIZE --output-prefix P [OPTIONS]

Writes Megatron token files: P.bin (tokens) and P.idx (index).

  --input FILE            a text, or JSON lines where the name ends in .jsonl or .json
  --stories SIZE          instead: SIZE bytes of generated stories (64K, 10M), also written to P.txt
  --seed N                of the stories (1)
  --output-prefix P       where the files go
  --tokenizer-type T      ByteTokenizer (default): 256 bytes and an end of document
                          NullTokenizer: whole numbers separated by blanks, with --vocab-size N
  --vocab-size N          ids of NullTokenizer
  --append-eod            end each document with the end-of-document token
  --documents HOW         of a text: blank-lines (default), lines, or whole. Without --append-eod the
                          separators stay in the text, so the documents one after another are the file
  --json-keys A,B         of JSON lines: the key that holds the text (text). With several keys each has
                          files of its own, P_KEY_document.bin and .idx
  --json                  a summary for machines
)";

struct Request {
  std::string input, prefix, tokenizer_type = "ByteTokenizer", documents = "blank-lines";
  std::optional<std::size_t> stories;
  std::uint64_t seed = 1;
  std::int64_t vocabulary = 0;
  std::vector<std::string> keys = {"text"};
  bool append_eod = false, json = false, json_lines = false;
};

// "64K", "10M", "1G", "1000": bytes.
std::size_t parse_size(const std::string& text) {
  const std::size_t unit = std::string_view("KMG").find(text.empty() ? ' ' : text.back());
  const std::string_view digits = std::string_view(text).substr(0, text.size() - (unit != std::string_view::npos));
  std::int64_t number = 0;
  const int shift = unit == std::string_view::npos ? 0 : 10 * (static_cast<int>(unit) + 1);
  if (!parse_int(digits, number) || number < 1 || number > (std::int64_t{1} << 46) >> shift) {
    throw UserError("weft tokenize: --stories {} is not a size; write bytes, or 64K, 10M, 1G", text);
  }
  return static_cast<std::size_t>(number) << shift;
}

std::int64_t whole_number(const ExplainArguments& arguments, std::string_view flag, std::int64_t otherwise) {
  const auto text = arguments.value(flag);
  std::int64_t number = otherwise;
  if (text && (!parse_int(*text, number) || number < 0)) {
    throw UserError("weft tokenize: {} must be a whole number, not '{}'", flag, *text);
  }
  return number;
}

Request parse(const ExplainArguments& arguments) {
  Request request;
  if (!arguments.positionals().empty()) {
    throw UserError("weft tokenize: unexpected '{}'; the text to read is --input FILE", arguments.positionals()[0]);
  }
  request.input = arguments.value("--input").value_or("");
  request.prefix = arguments.value("--output-prefix").value_or("");
  if (const auto size = arguments.value("--stories")) request.stories = parse_size(*size);
  if (request.input.empty() == !request.stories) {
    throw UserError("weft tokenize: give either --input FILE or --stories SIZE (see weft tokenize --help)");
  }
  if (request.prefix.empty()) throw UserError("weft tokenize: give --output-prefix P: the files are P.bin and P.idx");
  request.seed = static_cast<std::uint64_t>(whole_number(arguments, "--seed", 1));
  request.vocabulary = whole_number(arguments, "--vocab-size", 0);
  request.tokenizer_type = arguments.value("--tokenizer-type").value_or(request.tokenizer_type);
  request.documents = arguments.value("--documents").value_or(request.documents);
  if (request.documents != "blank-lines" && request.documents != "lines" && request.documents != "whole") {
    throw UserError("weft tokenize: --documents {} is unknown; there are blank-lines, lines, whole", request.documents);
  }
  request.append_eod = arguments.has("--append-eod");
  request.json = arguments.has("--json");
  request.json_lines = request.input.ends_with(".jsonl") || request.input.ends_with(".json");
  const auto keys = arguments.values("--json-keys");
  if (!keys.empty()) {
    if (!request.json_lines) throw UserError("weft tokenize: --json-keys is for JSON lines (FILE.jsonl)");
    request.keys.clear();
    for (const std::string& list : keys) {
      for (const std::string& key : split(list, ',')) request.keys.push_back(key);
    }
  }
  return request;
}

// How far a long input is, once a second; over one line where stderr is a terminal.
class Progress {
 public:
  explicit Progress(double total) : total_(total), terminal_(::isatty(STDERR_FILENO) != 0) {}
  ~Progress() {
    if (shown_ && terminal_) fmt::print(stderr, "\n");
  }

  void at(double bytes) {
    const auto now = Clock::now();
    if (now - last_ < std::chrono::seconds(1)) return;
    last_ = now;
    shown_ = true;
    const double seconds = seconds_so_far();
    fmt::print(stderr, "{}tokenized {} of {} ({:.0f} %), {}/s, {} left{}", terminal_ ? "\r" : "", human_bytes(bytes),
               human_bytes(total_), 100 * bytes / total_, human_bytes(bytes / seconds),
               human_seconds((total_ - bytes) * seconds / bytes), terminal_ ? "   " : "\n");
    std::fflush(stderr);
  }
  double seconds_so_far() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  double total_;
  bool terminal_, shown_ = false;
  Clock::time_point begin_ = Clock::now(), last_ = begin_;
};

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
    Progress progress(total);
    std::string line;
    for (std::int64_t number = 1; std::getline(in, line); ++number) {
      const bool ended = !in.eof();  // the last line may lack its end
      bytes_ += line.size() + ended;
      try {
        if (request_.json_lines) {
          add_json_line(line, fmt::format("{}:{}", name, number));
        } else {
          add_text_line(line, ended);
        }
      } catch (const UserError& error) {
        // JSON errors carry the place already; those of a tokenizer know only their document.
        const std::string what = error.what();
        throw UserError(what.starts_with(name) ? what
                                               : fmt::format("{}, document ending at line {}: {}", name, number, what));
      }
      progress.at(static_cast<double>(bytes_));
    }
    if (in.bad()) throw RunError("cannot read {}: {}", name, std::strerror(errno));
    add_document(*writers_[0], std::exchange(pending_, ""));
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
    if (request_.documents == "blank-lines" && !blank && after_blank_) {
      add_document(*writers_[0], std::exchange(pending_, ""));
    }
    after_blank_ = blank;
    pending_ += line;
    if (ended) pending_ += '\n';
    if (request_.documents == "lines") add_document(*writers_[0], std::exchange(pending_, ""));
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
      add_document(*writers_[i], found->get<std::string>());
    }
  }

  void add_document(IndexedDatasetWriter& writer, std::string_view text) {
    if (request_.append_eod && !request_.json_lines && request_.documents != "whole") {
      text = text.substr(0, text.find_last_not_of("\r\n") + 1);
    }
    auto ids = tokenizer_->encode(text);
    if (ids.empty()) return;  // a document without tokens says nothing
    if (request_.append_eod) ids.push_back(tokenizer_->eod());
    writer.add_document(ids);
  }

  const Request& request_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<std::unique_ptr<IndexedDatasetWriter>> writers_;
  std::string pending_;
  bool after_blank_ = false;
  std::size_t bytes_ = 0;
  double seconds_ = 0;
};

}  // namespace

int run_tokenize_command(std::span<const std::string> args, std::FILE* out) {
  const ExplainArguments arguments("weft tokenize", args,
                                   {{"--input"},
                                    {"--stories"},
                                    {"--seed"},
                                    {"--output-prefix"},
                                    {"--tokenizer-type"},
                                    {"--vocab-size"},
                                    {"--documents"},
                                    {"--json-keys", ExplainFlag::many_values},
                                    {"--append-eod", ExplainFlag::plain}});
  if (arguments.has("--help")) {
    fmt::print(out, "{}", help_text);
    return 0;
  }
  const Request request = parse(arguments);
  Job job(request);
  if (request.stories) {
    const std::string text = write_stories(request.seed, *request.stories);
    write_file_atomically(request.prefix + ".txt", text);
    std::istringstream in(text);
    job.read(in, static_cast<double>(text.size()), "stories");
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
