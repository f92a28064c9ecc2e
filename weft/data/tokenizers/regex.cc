#include "weft/data/tokenizers/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "weft/base/error.h"

namespace weft {

namespace {

constexpr std::size_t jit_stack_begin = 32 << 10, jit_stack_end = 16 << 20;  // bytes

struct Free {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
  void operator()(pcre2_jit_stack* stack) const { pcre2_jit_stack_free(stack); }
};

PCRE2_SPTR units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

std::string message_of_code(int code) {
  PCRE2_UCHAR text[200];
  return pcre2_get_error_message(code, text, sizeof(text)) < 0 ? "error " + std::to_string(code)
                                                               : reinterpret_cast<const char*>(text);
}

}  // namespace

struct RegexScratch::State {
  std::unique_ptr<pcre2_match_data, Free> found{pcre2_match_data_create(1, nullptr)};
  std::unique_ptr<pcre2_match_context, Free> context{pcre2_match_context_create(nullptr)};
  std::unique_ptr<pcre2_jit_stack, Free> stack{pcre2_jit_stack_create(jit_stack_begin, jit_stack_end, nullptr)};
};

RegexScratch::RegexScratch() : state_(std::make_unique<State>()) {
  if (!state_->found || !state_->context) throw std::bad_alloc();
  if (state_->stack) pcre2_jit_stack_assign(state_->context.get(), nullptr, state_->stack.get());
}
RegexScratch::~RegexScratch() = default;
RegexScratch::RegexScratch(RegexScratch&&) noexcept = default;

struct Regex::Code {
  std::unique_ptr<pcre2_code, Free> code;
  bool jit = false;
  std::string where;
};

Regex::Regex(std::string_view pattern, RegexDialect dialect, const std::string& where) {
  std::string translated;
  try {
    translated = pcre2_pattern(pattern, dialect);
  } catch (const UserError& error) {
    throw UserError("{}: the pattern {} cannot be used: {}", where, pattern.substr(0, 200), error.what());
  }
  // Where the tokenizer's own engine has lines end, and where classes are those of Unicode.
  std::uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
  if (dialect == RegexDialect::oniguruma) options |= PCRE2_MULTILINE;
  const std::unique_ptr<pcre2_compile_context, Free> context(pcre2_compile_context_create(nullptr));
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), 100);
  int error = 0;
  PCRE2_SIZE at = 0;
  auto code = std::make_shared<Code>();
  code->where = where;
  code->code.reset(pcre2_compile(units(translated), translated.size(), options, &error, &at, context.get()));
  if (!code->code)
    throw UserError("{}: the pattern {} cannot be used: {}", where, pattern.substr(0, 200), message_of_code(error));
  code->jit = pcre2_jit_compile(code->code.get(), PCRE2_JIT_COMPLETE) == 0;  // else it is interpreted
  code_ = std::move(code);
}

Regex Regex::of_text(std::string_view text, const std::string& where) {
  std::string pattern;
  for (char c : text) {
    if (std::string_view("\\^$.[]|()?*+{}#-&~").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return Regex(pattern, RegexDialect::fancy, where);
}

bool Regex::search(std::string_view text, std::size_t from, RegexScratch& scratch, Match& match) const {
  RegexScratch::State& state = *scratch.state_;
  const pcre2_code* code = code_->code.get();
  int found = PCRE2_ERROR_JIT_STACKLIMIT;
  if (code_->jit)
    found = pcre2_jit_match(code, units(text), text.size(), from, PCRE2_NO_UTF_CHECK, state.found.get(),
                            state.context.get());
  if (found == PCRE2_ERROR_JIT_STACKLIMIT)  // the interpreter keeps what it may go back to on the heap
    found = pcre2_match(code, units(text), text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, state.found.get(),
                        state.context.get());
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found < 0)
    throw UserError("{}: its pattern cannot split this text at byte {}: {}", code_->where, from,
                    message_of_code(found));
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(state.found.get());
  match = {ends[0], ends[1]};
  return true;
}

}  // namespace weft
