#include "weft/comm/control.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <signal.h>
#include <unistd.h>

#include "weft/base/error.h"
#include "weft/base/text.h"

namespace weft {

Control::Control(int rank, int size)
    : rank_(rank), size_(size), answers_(static_cast<std::size_t>(size)), gone_(static_cast<std::size_t>(size)) {}

void Control::throw_if_ended() const {
  if (!ended_.load()) return;
  const std::lock_guard lock(mutex_);
  throw PeerError(*failure_);
}

bool Control::end(PeerError failure) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return false;
    failure_.emplace(std::move(failure));
    ended_.store(true);
    changed_.notify_all();
  }
  wake_waits();
  return true;
}

bool Control::fail(const std::string& message) {
  if (!end(PeerError(RankId(rank_), message))) return false;
  tell_others(Word::failure, message);
  return true;
}

void Control::lose(int peer, const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (gone_[static_cast<std::size_t>(peer)]) return;
    gone_[static_cast<std::size_t>(peer)] = true;
    changed_.notify_all();
  }
  // The others may not see it: a connection can break between two ranks alone.
  if (end(PeerError::lost(RankId(peer), why))) tell_others(Word::loss, fmt::format("{} {}", peer, why));
}

std::vector<std::string> Control::ask_standings(double seconds) {
  std::unique_lock lock(mutex_);
  answers_.assign(answers_.size(), std::nullopt);
  lock.unlock();
  tell_others(Word::question, "");
  lock.lock();
  changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] {
    for (std::size_t peer = 0; peer < answers_.size(); ++peer)
      if (peer != static_cast<std::size_t>(rank_) && !answers_[peer]) return ended_.load();
    return true;
  });
  std::vector<std::string> texts;
  for (const std::optional<std::string>& answer : answers_) texts.push_back(answer.value_or(""));
  lock.unlock();
  texts[static_cast<std::size_t>(rank_)] = standing_.text();
  return texts;
}

bool Control::say_goodbye(double seconds_after_failure) {
  tell_others(Word::goodbye, "");
  std::unique_lock lock(mutex_);
  gone_[static_cast<std::size_t>(rank_)] = true;
  const auto all_gone = [&] { return std::ranges::all_of(gone_, [](bool gone) { return gone; }); };
  if (ended_.load())
    changed_.wait_for(lock, std::chrono::duration<double>(seconds_after_failure), all_gone);
  else
    changed_.wait(lock, [&] { return all_gone() || ended_.load(); });
  return all_gone();
}

void Control::tell_others(Word word, const std::string& text) {
  const auto shared = std::make_shared<const std::string>(text.substr(0, longest_text));
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_) tell(peer, word, shared);
}

void Control::hear(int peer, Word word, const std::string& text) {
  switch (word) {
    case Word::failure:
      end(PeerError(RankId(peer), text));
      return;
    case Word::loss: {
      const std::size_t space = std::min(text.find(' '), text.size());
      std::int64_t lost = peer;
      parse_int(text.substr(0, space), lost);
      end(PeerError::lost(RankId(static_cast<int>(lost)), text.substr(std::min(space + 1, text.size()))));
      return;
    }
    case Word::question:
      tell(peer, Word::answer, std::make_shared<const std::string>(standing_.text().substr(0, longest_text)));
      return;
    case Word::answer:
    case Word::goodbye:
      const std::lock_guard lock(mutex_);
      if (word == Word::answer)
        answers_[static_cast<std::size_t>(peer)] = text;
      else
        gone_[static_cast<std::size_t>(peer)] = true;
      changed_.notify_all();
  }
}

void Control::note_sigterm() {
  if (told_to_stop_.exchange(true)) _exit(128 + SIGTERM);  // asked twice: whoever computes will not come back
  const std::string where = standing_.text();
  if (!fail(
          fmt::format("told to stop (SIGTERM; launchers send it to every rank when one dies). It stood at: {}", where)))
    return;
  // Written at once and by hand: mpirun kills within a second, and the threads that wait may never get to speak.
  const std::string line = fmt::format("weft: rank {} is told to stop (SIGTERM). It stood at: {}\n", rank_, where);
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace weft
