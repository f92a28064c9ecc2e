#include "apps/weft/tokenize_files.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/weft/progress.h"
#include "apps/weft/token_workers.h"
#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/json.h"
#include "weft/base/text.h"
#include "weft/data/indexed_dataset_writer.h"
#include "weft/data/stories.h"

namespace weft {
namespace {

constexpr std::size_t batch_bytes = std::size_t{1} << 18;

class Files {
 public:
  Files(const TokenizeRequest& request, const Tokenizer& tokenizer)
      : request_(request), tokenizer_(tokenizer), workers_(rules_of(request), tokenizer, request.threads) {
    std::vector<std::string> prefixes;
    for (const std::string& key : request.keys)
      prefixes.push_back(request.key_lists.empty() ? request.prefix
                                                   : fmt::format("{}_{}_document", request.prefix, key));
    for (const std::string& prefix : prefixes) require_new({prefix + ".bin", prefix + ".idx"});
    if (request.stories > 0) require_new({request.prefix + ".txt"});
    for (const std::string& prefix : prefixes)
      writers_.push_back(std::make_unique<IndexedDatasetWriter>(prefix, tokenizer.vocabulary_size()));
  }

  void read(std::istream& in, double total, const std::string& name) {
    Progress progress("tokenized", total);
    std::string line;
    name_ = name;
    for (line_ = 1; std::getline(in, line); ++line_) {
      const bool ended = !in.eof();  // the last line may lack its end
      bytes_ += line.size() + ended;
      if (request_.json_lines) {
        if (!trim(line).empty()) add({std::move(line), fmt::format("{}:{}", name, line_)});
      } else {
        add_text_line(line, ended);
      }
      progress.at(static_cast<double>(bytes_));
    }
    if (in.bad()) throw RunError("cannot read {}: {}", name, std::strerror(errno));
    end_text_document();
    submit();
    while (workers_.pending() > 0) write(workers_.take());
    seconds_ = progress.seconds_so_far();
  }

  void finish() {
    if (writers_[0]->documents() == 0) throw UserError("weft tokenize: there is no text to write");
    for (const auto& writer : writers_) writer->finish();
  }

  void report(std::FILE* out) const {
    if (!request_.json) {
      for (const auto& writer : writers_)
        fmt::print(out, "{}: {} documents, {} tokens of {} ids as {}\n", writer->token_path().string(),
                   writer->documents(), writer->tokens(), tokenizer_.vocabulary_size(), name_of(writer->token_type()));
      return;
    }
    Json files = Json::array();
    for (const auto& writer : writers_) {
      files.push_back({{"bin", writer->token_path().string()},
                       {"idx", writer->index_path().string()},
                       {"documents", writer->documents()},
                       {"tokens", writer->tokens()},
                       {"dtype", name_of(writer->token_type())}});
    }
    const Json summary = {{"tokenizer", request_.tokenizer.type},
                          {"vocabulary_size", tokenizer_.vocabulary_size()},
                          {"eod", tokenizer_.eod()},
                          {"append_eod", request_.append_eod},
                          {"input_bytes", bytes_},
                          {"seconds", seconds_},
                          {"threads", workers_.threads()},
                          {"files", files}};
    fmt::print(out, "{}\n", summary.dump());
  }

 private:
  static EncodingRules rules_of(const TokenizeRequest& request) {
    const bool trims = request.append_eod && !request.json_lines && request.documents != DocumentsAre::whole;
    return {request.json_lines ? request.keys : std::vector<std::string>(), request.append_eod,
            request.add_special_tokens, trims};
  }
  void require_new(const std::vector<std::string>& files) const {
    for (const std::string& file : files) {
      // What is no file, such as /dev/null, keeps what it is.
      if (request_.overwrite || !std::filesystem::is_regular_file(file)) continue;
      throw UserError("{} exists; replace it with --overwrite, or choose another --output-prefix", file);
    }
  }

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
    if (pending_.empty()) return;
    add({std::exchange(pending_, ""), fmt::format("{}, document at line {}", name_, first_line_)});
  }

  void add(SourceDocument document) {
    batched_ += document.text.size();
    batch_.push_back(std::move(document));
    if (batched_ >= batch_bytes) submit();
  }
  void submit() {
    batched_ = 0;
    workers_.submit(std::exchange(batch_, {}));
    while (workers_.full()) write(workers_.take());
  }
  void write(const std::vector<EncodedDocuments>& batch) {
    for (std::size_t i = 0; i < writers_.size(); ++i) {
      std::size_t begin = 0;
      for (std::size_t length : batch[i].lengths) {
        writers_[i]->add_document(std::span(batch[i].ids).subspan(begin, length));
        begin += length;
      }
    }
  }

  const TokenizeRequest& request_;
  const Tokenizer& tokenizer_;
  TokenWorkers workers_;
  std::vector<std::unique_ptr<IndexedDatasetWriter>> writers_;
  std::vector<SourceDocument> batch_;
  std::size_t batched_ = 0;  // bytes
  std::string name_, pending_;
  std::int64_t line_ = 0, first_line_ = 0;  // read now, of pending_
  bool after_blank_ = false;
  std::size_t bytes_ = 0;
  double seconds_ = 0;
};

}  // namespace

void tokenize_files(const TokenizeRequest& request, const Tokenizer& tokenizer, std::FILE* out) {
  Files files(request, tokenizer);
  if (request.stories > 0) {
    const std::string text = write_stories(static_cast<std::uint64_t>(request.seed), request.stories);
    std::istringstream in(text);
    files.read(in, static_cast<double>(text.size()), "stories");
    write_file_atomically(request.prefix + ".txt", text);
  } else {
    std::error_code error;
    const auto size = std::filesystem::file_size(request.input, error);
    std::ifstream in(request.input, std::ios::binary);
    if (error || !in)
      throw UserError("cannot read {}: {}", request.input, error ? error.message() : std::strerror(errno));
    files.read(in, static_cast<double>(size), request.input);
  }
  files.finish();
  files.report(out);
}

}  // namespace weft
