// Threads that encode batches of documents. Batches come back in the order in which they were given.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "weft/data/tokenizer.h"

namespace weft {

struct SourceDocument {
  std::string text;   // or a line of JSON
  std::string where;  // of errors
};
struct EncodedDocuments {
  std::vector<std::int32_t> ids;     // of all documents, one after another
  std::vector<std::size_t> lengths;  // a document without ids is left out
};
struct EncodingRules {
  std::vector<std::string> keys;  // of the texts in a line of JSON; empty: documents are texts
  bool append_eod = false, add_special_tokens = false;
  bool trim_line_ends = false;  // from the end of a document
};

// The text under a key of a line of JSON. UserError "WHERE: ...".
std::string text_in_json(const std::string& line, const std::string& key, const std::string& where);

class TokenWorkers {
 public:
  // `threads` 0: as many as there are cores.
  TokenWorkers(EncodingRules rules, const Tokenizer& tokenizer, std::int64_t threads);
  ~TokenWorkers();
  TokenWorkers(const TokenWorkers&) = delete;
  TokenWorkers& operator=(const TokenWorkers&) = delete;

  std::size_t threads() const { return threads_.size(); }
  void submit(std::vector<SourceDocument> documents);
  std::size_t pending() const { return pending_.size(); }
  bool full() const { return pending_.size() >= 2 * threads_.size(); }  // more would only take memory
  // The oldest batch, one entry per key. Throws what encoding it threw.
  std::vector<EncodedDocuments> take();

 private:
  using Batch = std::packaged_task<std::vector<EncodedDocuments>(Encoder&)>;
  void work();
  std::vector<EncodedDocuments> encode(const std::vector<SourceDocument>& documents, Encoder& encoder) const;

  const EncodingRules rules_;
  const Tokenizer& tokenizer_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Batch> waiting_;  // guarded by mutex_
  bool done_ = false;          // guarded by mutex_
  std::deque<std::future<std::vector<EncodedDocuments>>> pending_;
  std::vector<std::thread> threads_;
};

}  // namespace weft
