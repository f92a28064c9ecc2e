// A rank's listening socket: accepts the ranks it waits for and refuses other connections.
#pragma once

#include <string>
#include <vector>

#include "weft/comm/tcp/handshake.h"
#include "weft/comm/tcp/socket.h"

namespace weft {

class Listener {
 public:
  Listener(Socket socket, int rank, int size, std::string run);

  int port() const { return local_end(socket_).port; }

  // Accepts connections until every rank from `first` on is connected: their sockets go to `peers`, the endpoints where
  // they listen to `ends`. If a rank in `peers` closes its connection meanwhile, may_return waits for it again and
  // fatal throws RunError. False when the time is up. After ten seconds it prints to stderr which ranks it waits for,
  // at `place`.
  enum class Departed : unsigned char { may_return, fatal };
  bool accept_ranks(int first, std::vector<Socket>& peers, std::vector<Endpoint>& ends, Clock::time_point until,
                    Departed departed, const std::string& place);

  std::string missing(int first, const std::vector<Socket>& peers) const;  // "ranks 2 and 5 of 8"
  std::string refusals() const;  // "; refused: 10.0.0.7:5121 (REASON)", or nothing

 private:
  struct Candidate {
    Socket socket;
    Clock::time_point until;
    std::size_t have = 0;
    Hello hello;
  };
  // False when the candidate is done: accepted, refused or gone.
  bool read_hello(Candidate& candidate, int first, std::vector<Socket>& peers, std::vector<Endpoint>& ends);
  std::string reason_to_refuse(const Hello& hello, int first, const std::vector<Socket>& peers) const;
  void refuse(const Socket& socket, const std::string& why);

  Socket socket_;
  int rank_, size_;
  std::string run_;
  std::vector<Candidate> candidates_;
  std::vector<std::string> refusals_;  // the last few
};

}  // namespace weft
