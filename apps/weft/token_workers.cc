#include "apps/weft/token_workers.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/json.h"

namespace weft {

std::string text_in_json(const std::string& line, const std::string& key, const std::string& where) {
  const Json object = parse_json(line, where);
  const auto found = object.is_object() ? object.find(key) : object.end();
  if (!object.is_object() || found == object.end() || !found->is_string())
    throw UserError("{}: no text under the key \"{}\" (--json-keys)", where, key);
  return found->get<std::string>();
}

TokenWorkers::TokenWorkers(EncodingRules rules, const Tokenizer& tokenizer, std::int64_t threads)
    : rules_(std::move(rules)), tokenizer_(tokenizer) {
  const auto cores = static_cast<std::int64_t>(std::max(1u, std::thread::hardware_concurrency()));
  for (std::int64_t i = threads > 0 ? threads : cores; i > 0; --i) threads_.emplace_back([this] { work(); });
}

TokenWorkers::~TokenWorkers() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
    waiting_.clear();
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void TokenWorkers::submit(std::vector<SourceDocument> documents) {
  if (documents.empty()) return;
  Batch batch([this, documents = std::move(documents)](Encoder& encoder) { return encode(documents, encoder); });
  pending_.push_back(batch.get_future());
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(batch));
  }
  changed_.notify_one();
}

std::vector<EncodedDocuments> TokenWorkers::take() {
  std::future<std::vector<EncodedDocuments>> oldest = std::move(pending_.front());
  pending_.pop_front();
  return oldest.get();
}

void TokenWorkers::work() {
  const std::unique_ptr<Encoder> encoder = tokenizer_.encoder();
  for (;;) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return done_ || !waiting_.empty(); });
    if (done_) return;
    Batch batch = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    batch(*encoder);
  }
}

std::vector<EncodedDocuments> TokenWorkers::encode(const std::vector<SourceDocument>& documents,
                                                   Encoder& encoder) const {
  const std::size_t keys = std::max<std::size_t>(rules_.keys.size(), 1);
  std::vector<EncodedDocuments> result(keys);
  const std::vector<std::int32_t> before = tokenizer_.special_before(), after = tokenizer_.special_after();
  for (const SourceDocument& document : documents) {
    for (std::size_t i = 0; i < keys; ++i) {
      std::string own;
      std::string_view text = document.text;
      if (!rules_.keys.empty()) text = own = text_in_json(document.text, rules_.keys[i], document.where);
      if (rules_.trim_line_ends) text = text.substr(0, text.find_last_not_of("\r\n") + 1);
      std::vector<std::int32_t>& ids = result[i].ids;
      const std::size_t begin = ids.size();
      if (rules_.add_special_tokens) ids.insert(ids.end(), before.begin(), before.end());
      const std::size_t own_begin = ids.size();
      try {  // a tokenizer's errors do not name the document
        encoder.encode(text, ids);
      } catch (const UserError& error) {
        throw UserError("{}: {}", document.where, error.what());
      }
      if (ids.size() == own_begin) {
        ids.resize(begin);
        continue;
      }
      if (rules_.add_special_tokens) ids.insert(ids.end(), after.begin(), after.end());
      if (rules_.append_eod) ids.push_back(tokenizer_.eod());
      result[i].lengths.push_back(ids.size() - begin);
    }
  }
  return result;
}

}  // namespace weft
