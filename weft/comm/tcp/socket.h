// TCP sockets over IPv4 and IPv6: one that closes itself, and the calls to make them.
#pragma once

#include <chrono>
#include <string>
#include <utility>

namespace weft {

using Clock = std::chrono::steady_clock;

class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    if (this != &other) close();
    if (this != &other) fd_ = std::exchange(other.fd_, -1);
    return *this;
  }
  int fd() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  void close();

 private:
  int fd_;
};

struct Endpoint {
  std::string host;  // a name or an address
  int port = 0;
  std::string text() const;  // "node1:29500", "[::1]:29500"
};

Endpoint local_end(const Socket& socket);   // numeric, as remote_end
Endpoint remote_end(const Socket& socket);  // an empty host when it has none
bool is_loopback(const std::string& address);
bool names_loopback(const std::string& host);  // "localhost" or a loopback address, as text

// Listens at the port (0: any free one), on the addresses of `host`, or on all of this machine when it is empty. Not
// open, with errno, when it cannot.
Socket listen_at(const std::string& host, int port);
// Tries every address of the endpoint once. Not open, and the reason in `why`, when none answers.
Socket connect_to(const Endpoint& endpoint, Clock::time_point until, std::string& why);

// For messages: no delay, does not block, and notices after half a minute that the other machine is gone.
void prepare(const Socket& socket);

// Milliseconds to poll for, rounded up; 0 when it is past.
int milliseconds_until(Clock::time_point time);
// Whole pieces of bytes on a socket that does not block; false when it closed, failed or the time is up.
bool read_all(const Socket& socket, void* data, std::size_t bytes, Clock::time_point until);
bool write_all(const Socket& socket, const void* data, std::size_t bytes, Clock::time_point until);

}  // namespace weft
