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
  send_to_others(Message::failure, message);
  return true;
}

void Control::handle_loss(int peer, const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (gone_[static_cast<std::size_t>(peer)]) return;
    gone_[static_cast<std::size_t>(peer)] = true;
    changed_.notify_all();
  }
  // The others may not notice: a connection can break between just two ranks.
  if (end(PeerError::lost(RankId(peer), why))) send_to_others(Message::loss, fmt::format("{} {}", peer, why));
}

std::vector<std::string> Control::ask_activities(double seconds) {
  std::unique_lock lock(mutex_);
  answers_.assign(answers_.size(), std::nullopt);
  lock.unlock();
  send_to_others(Message::question, "");
  lock.lock();
  changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] {
    for (std::size_t peer = 0; peer < answers_.size(); ++peer)
      if (peer != static_cast<std::size_t>(rank_) && !answers_[peer]) return ended_.load();
    return true;
  });
  std::vector<std::string> texts;
  for (const std::optional<std::string>& answer : answers_) texts.push_back(answer.value_or(""));
  lock.unlock();
  texts[static_cast<std::size_t>(rank_)] = activity_.text();
  return texts;
}

bool Control::say_goodbye(double seconds_after_failure) {
  send_to_others(Message::goodbye, "");
  std::unique_lock lock(mutex_);
  gone_[static_cast<std::size_t>(rank_)] = true;
  const auto all_gone = [&] { return std::ranges::all_of(gone_, [](bool gone) { return gone; }); };
  if (ended_.load())
    changed_.wait_for(lock, std::chrono::duration<double>(seconds_after_failure), all_gone);
  else
    changed_.wait(lock, [&] { return all_gone() || ended_.load(); });
  return all_gone();
}

void Control::send_to_others(Message message, const std::string& text) {
  const auto shared = std::make_shared<const std::string>(text.substr(0, longest_text));
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_) send(peer, message, shared);
}

void Control::handle(int peer, Message message, const std::string& text) {
  switch (message) {
    case Message::failure:
      end(PeerError(RankId(peer), text));
      return;
    case Message::loss: {
      const std::size_t space = std::min(text.find(' '), text.size());
      std::int64_t lost = peer;
      parse_int(text.substr(0, space), lost);
      end(PeerError::lost(RankId(static_cast<int>(lost)), text.substr(std::min(space + 1, text.size()))));
      return;
    }
    case Message::question:
      send(peer, Message::answer, std::make_shared<const std::string>(activity_.text().substr(0, longest_text)));
      return;
    case Message::answer:
    case Message::goodbye:
      const std::lock_guard lock(mutex_);
      if (message == Message::answer)
        answers_[static_cast<std::size_t>(peer)] = text;
      else
        gone_[static_cast<std::size_t>(peer)] = true;
      changed_.notify_all();
  }
}

void Control::note_sigterm() {
  if (got_sigterm_.exchange(true)) _exit(128 + SIGTERM);  // asked twice: this rank's threads do not respond
  const std::string where = activity_.text();
  if (!fail(fmt::format("got SIGTERM, which launchers send to every rank when one dies. It was at: {}", where))) return;
  // Written directly: mpirun kills within a second, and the waiting threads may never get to print.
  const std::string line = fmt::format("weft: rank {} got SIGTERM and stops. It was at: {}\n", rank_, where);
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace weft
