#include "apps/weft/tokenize_lines.h"

#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/weft/token_workers.h"
#include "weft/base/error.h"
#include "weft/base/json.h"
#include "weft/base/text.h"

namespace weft {
namespace {

void flush(std::FILE* out) {
  if (std::fflush(out) != 0) throw RunError("cannot write to standard output: {}", std::strerror(errno));
}

// Calls take(line, where) for each line that is not blank. Who waits for an answer before the next line gets it.
template <class Take>
void each_line(std::istream& in, std::FILE* out, Take&& take) {
  std::string line;
  for (std::int64_t number = 1; std::getline(in, line); ++number) {
    if (!trim(line).empty()) take(line, fmt::format("standard input, line {}", number));
    if (in.rdbuf()->in_avail() <= 0) flush(out);
  }
  if (in.bad()) throw RunError("cannot read standard input: {}", std::strerror(errno));
  flush(out);
}

void write_line(std::FILE* out, const std::string& line) {
  if (std::fwrite(line.data(), 1, line.size(), out) != line.size() || std::fputc('\n', out) == EOF)
    throw RunError("cannot write to standard output: {}", std::strerror(errno));
}

}  // namespace

void print_ids(const TokenizeRequest& request, const Tokenizer& tokenizer, std::istream& in, std::FILE* out) {
  const std::unique_ptr<Encoder> encoder = tokenizer.encoder();
  const bool special = request.add_special_tokens;
  std::string list;
  std::vector<std::int32_t> ids;
  each_line(in, out, [&](const std::string& line, const std::string& where) {
    ids = special ? tokenizer.special_before() : std::vector<std::int32_t>();
    try {
      encoder->encode(text_in_json(line, request.keys[0], where), ids);
    } catch (const UserError& error) {
      const std::string_view message = error.what();
      throw UserError("{}{}", message.starts_with(where) ? "" : where + ": ", message);
    }
    const std::vector<std::int32_t> after = special ? tokenizer.special_after() : std::vector<std::int32_t>();
    ids.insert(ids.end(), after.begin(), after.end());
    if (request.append_eod) ids.push_back(tokenizer.eod());
    list.clear();
    for (const std::int32_t id : ids) {
      list += list.empty() ? '[' : ',';
      const fmt::format_int digits(id);
      list.append(digits.data(), digits.size());
    }
    write_line(out, list.empty() ? "[]" : list + "]");
  });
}

void print_texts(const TokenizeRequest& request, const Tokenizer& tokenizer, std::istream& in, std::FILE* out) {
  const SpecialTokens special = request.skip_special_tokens ? SpecialTokens::skip : SpecialTokens::keep;
  std::vector<std::int32_t> ids;
  each_line(in, out, [&](const std::string& line, const std::string& where) {
    const Json list = parse_json(line, where);
    if (!list.is_array()) throw UserError("{}: must be a list of ids, such as [1, 2]", where);
    ids.clear();
    for (const Json& id : list) {
      const bool whole = id.is_number_integer();
      const bool fits = whole && (!id.is_number_unsigned() || id.get<std::uint64_t>() <= INT32_MAX);
      const std::int64_t value = fits ? id.get<std::int64_t>() : -1;
      if (!whole) throw UserError("{}: {} is not an id: ids are whole numbers", where, id.dump());
      if (value < 0 || value >= tokenizer.vocabulary_size())
        throw UserError("{}: {} is outside the vocabulary of {} ids", where, id.dump(), tokenizer.vocabulary_size());
      ids.push_back(static_cast<std::int32_t>(value));
    }
    const Json text = {{request.keys[0], tokenizer.decode(ids, special)}};
    write_line(out, text.dump(-1, ' ', true, Json::error_handler_t::replace));
  });
}

}  // namespace weft
