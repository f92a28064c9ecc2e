// The three kinds of failure (docs/errors.md).
//   UserError  the request was wrong; the message states what, where, and what to do instead. Exit code 2.
//   RunError   something outside failed during the run (file system, a peer, memory, a NaN). Exit code 1.
//   BugError   an invariant of Weft does not hold; WEFT_CHECK throws it with the values.
#pragma once

#include <stdexcept>
#include <string>

#include <fmt/format.h>

namespace weft {

class UserError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  template <class First, class... Rest>
  UserError(fmt::format_string<First, Rest...> text, First&& first, Rest&&... rest)
      : std::runtime_error(fmt::format(text, std::forward<First>(first), std::forward<Rest>(rest)...)) {}
};

class RunError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  template <class First, class... Rest>
  RunError(fmt::format_string<First, Rest...> text, First&& first, Rest&&... rest)
      : std::runtime_error(fmt::format(text, std::forward<First>(first), std::forward<Rest>(rest)...)) {}
};

class BugError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void fail_check(const char* condition, const char* file, int line, const std::string& message);

}  // namespace weft

// WEFT_CHECK(condition, "format {}", values...): throws BugError unless the condition holds. Always on.
#define WEFT_CHECK(condition, ...)                                                                  \
  do {                                                                                              \
    if (!(condition)) ::weft::fail_check(#condition, __FILE__, __LINE__, fmt::format(__VA_ARGS__)); \
  } while (false)
