// TCP sockets over IPv4 and IPv6, which close themselves, and the functions that make them.
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
Endpoint remote_end(const Socket& socket);  // an empty host if it has none
bool is_loopback(const std::string& address);
bool names_loopback(const std::string& host);  // "localhost" or a loopback address, as text

// Listens at the port (0: any free one) on the addresses of `host`, or on all addresses of this machine if it is empty.
// On failure the socket is not open and errno is set.
Socket listen_at(const std::string& host, int port);
// Tries every address of the endpoint once. If none answers, the socket is not open and `why` holds the reason.
Socket connect_to(const Endpoint& endpoint, Clock::time_point until, std::string& why);

// Prepares a socket for messages: no delay, non-blocking, and it notices after half a minute that the other machine is
// gone.
void prepare(const Socket& socket);

// Milliseconds to poll for, rounded up; 0 if the time has passed.
int milliseconds_until(Clock::time_point time);
// Reads or writes all bytes on a non-blocking socket; false if it closed or failed, or the time is up.
bool read_all(const Socket& socket, void* data, std::size_t bytes, Clock::time_point until);
bool write_all(const Socket& socket, const void* data, std::size_t bytes, Clock::time_point until);

}  // namespace weft
