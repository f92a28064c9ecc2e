// Where a rank listens: lets in the ranks it waits for, and turns away whoever else comes.
#pragma once

#include <string>
#include <vector>

#include "weft/comm/tcp/greeting.h"
#include "weft/comm/tcp/socket.h"

namespace weft {

class Door {
 public:
  Door(Socket listener, int rank, int size, std::string run);

  int port() const { return local_end(listener_).port; }

  // Until every rank from `first` on has come: their sockets in `peers`, where they listen in `ends`. Ranks in `peers`
  // that close their connection meanwhile: with `again` they may come once more, otherwise a RunError. False when the
  // time is up, after `waits` (where it is known, and for whom) was printed to stderr.
  enum class Departed : unsigned char { again, fatal };
  bool let_in(int first, std::vector<Socket>& peers, std::vector<Endpoint>& ends, Clock::time_point until,
              Departed departed, const std::string& place);

  std::string missing(int first, const std::vector<Socket>& peers) const;  // "ranks 2 and 5 of 8"
  std::string turned_away() const;  // "; turned away: 10.0.0.7:5121 (REASON)", or nothing

 private:
  struct Caller {
    Socket socket;
    Clock::time_point until;
    std::size_t have = 0;
    Greeting greeting;
  };
  // False when the caller is finished with: let in, turned away, or gone.
  bool listen_to(Caller& caller, int first, std::vector<Socket>& peers, std::vector<Endpoint>& ends);
  std::string objection(const Greeting& greeting, int first, const std::vector<Socket>& peers) const;
  void turn_away(const Socket& socket, const std::string& why);

  Socket listener_;
  int rank_, size_;
  std::string run_;
  std::vector<Caller> callers_;
  std::vector<std::string> turned_away_;  // the last few
};

}  // namespace weft
