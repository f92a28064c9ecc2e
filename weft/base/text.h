// Human-readable text: a caret under a mistake, the nearest name, sizes and times.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

// Two lines: the text, and a caret under the byte at `position` (UTF-8 continuation bytes take no column).
std::string point_at(std::string_view text, std::size_t position);

// The candidate with the smallest edit distance to `word`, or "" when none is close enough to suggest.
std::string nearest_name(std::string_view word, std::span<const std::string> candidates);

std::vector<std::string> split(std::string_view text, char separator);  // keeps empty parts
std::string join(std::span<const std::string> parts, std::string_view separator);
std::string_view trim(std::string_view text);

std::string human_bytes(double bytes);      // "1.50 GiB"
std::string human_count(double count);      // "124.4 M"
std::string human_seconds(double seconds);  // "3 min 20 s"

// False unless the whole text is a number: "12x" is not.
bool parse_int(std::string_view text, std::int64_t& value);
bool parse_double(std::string_view text, double& value);

}  // namespace weft
