#include "weft/train/stage_layout.h"

#include <cctype>
#include <string>

#include <fmt/format.h>

#include "weft/base/error.h"
#include "weft/base/text.h"

namespace weft {
namespace {

constexpr std::size_t longest = 100'000;  // letters; a typo must not exhaust memory

struct Letter {
  char letter = 't';
  std::size_t at = 0;  // in the text
};

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  std::vector<Letter> read() {
    std::vector<Letter> all = items(0);
    if (at_ < text_.size()) fail("this ')' closes nothing", at_);
    return all;
  }
  [[noreturn]] void fail(std::string_view what, std::size_t at) const {
    throw UserError("{}\n{}", what, point_at(text_, at));
  }

 private:
  std::vector<Letter> items(int depth) {
    if (depth > 32) fail("too many parentheses", at_);
    std::vector<Letter> all;
    while (at_ < text_.size() && text_[at_] != ')') {
      const std::size_t begin = at_;
      const char c = text_[at_++];
      std::vector<Letter> item;
      if (c == ',' || std::isspace(static_cast<unsigned char>(c)) != 0) continue;
      if (c == '(') {
        item = items(depth + 1);
        if (at_ == text_.size()) fail("this '(' is not closed", begin);
        ++at_;
      } else if (std::string_view("EtmL|").find(c) != std::string_view::npos) {
        item.push_back({c, begin});
      } else {
        fail("only E, t, m, L, '|', parentheses and *N stand here", begin);
      }
      const std::size_t times = repetitions();
      if (all.size() + times * item.size() > longest) fail("too many layers", begin);
      for (std::size_t i = 0; i < times; ++i) all.insert(all.end(), item.begin(), item.end());
    }
    return all;
  }

  std::size_t repetitions() {
    if (at_ == text_.size() || text_[at_] != '*') return 1;
    const std::size_t star = at_++;
    std::size_t number = 0;
    const std::size_t first = at_;
    for (; at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0; ++at_)
      if ((number = number * 10 + static_cast<std::size_t>(text_[at_] - '0')) > longest) fail("too many layers", star);
    if (at_ == first) fail("a number should follow '*'", star);
    return number;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

std::vector<int> layers_of_stages(std::string_view text, bool mtp) {
  Reader reader(text);
  std::vector<int> layers{0};
  bool embedding = false, loss = false;
  int mtp_stage = -1;
  std::size_t mtp_at = 0;
  for (const Letter& letter : reader.read()) {
    if (letter.letter == '|') {
      if (loss) reader.fail("the stage with L, the loss, must be the last", letter.at);
      layers.push_back(0);
      continue;
    }
    const bool at_begin = layers.size() == 1 && layers.back() == 0 && !embedding;
    if (letter.letter == 'E') {
      if (!at_begin) reader.fail("E, the embedding, must be first, once", letter.at);
      embedding = true;
      continue;
    }
    if (!embedding) reader.fail("E, the embedding, must be first", letter.at);
    if (loss) reader.fail("nothing follows L, the loss", letter.at);
    if (letter.letter == 'L') loss = true;
    if (letter.letter == 't') {
      if (mtp_stage >= 0) reader.fail("no layer follows m, the MTP depths", letter.at);
      ++layers.back();
    }
    if (letter.letter == 'm') {
      mtp_stage = static_cast<int>(layers.size()) - 1;
      mtp_at = letter.at;
    }
  }
  if (!loss) reader.fail("L, the loss, is missing at the end", text.size());
  if (mtp_stage >= 0 && !mtp) reader.fail("the model has no MTP depths; drop m, or set --mtp-num-layers", mtp_at);
  if (mtp_stage >= 0 && mtp_stage + 1 != static_cast<int>(layers.size()))
    reader.fail("MTP and the loss share a weight: put m on the stage of L", mtp_at);
  if (mtp_stage < 0 && mtp) reader.fail("the model has MTP depths: put m before L", text.size());
  return layers;
}

}  // namespace weft
