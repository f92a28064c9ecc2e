#include "weft/comm/tcp/socket.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace weft {

namespace {

constexpr int waiting_connections = 4096;  // before they are accepted

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses addresses_of(const std::string& host, int port, int flags, std::string& why) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0) why = code == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(code);
  return {code == 0 ? found : nullptr, freeaddrinfo};
}

void set_option(int fd, int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof(value)); }

Socket make_socket(int family) { return Socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }

bool listen_on(Socket& socket, const sockaddr* address, socklen_t length) {
  set_option(socket.fd(), SOL_SOCKET, SO_REUSEADDR, 1);
  return bind(socket.fd(), address, length) == 0 && listen(socket.fd(), waiting_connections) == 0;
}

Endpoint end_of(const sockaddr_storage& address, socklen_t length) {
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host, sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return {};
  const std::string text = host;
  const std::string mapped = "::ffff:";  // IPv4 on a dual-stack socket
  return {text.starts_with(mapped) ? text.substr(mapped.size()) : text, std::atoi(port)};
}

}  // namespace

void Socket::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

std::string Endpoint::text() const {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port) : fmt::format("[{}]:{}", host, port);
}

Endpoint local_end(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return {};
  return end_of(address, length);
}

Endpoint remote_end(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return {};
  return end_of(address, length);
}

bool is_loopback(const std::string& address) { return address == "::1" || address.starts_with("127."); }

bool names_loopback(const std::string& host) { return host == "localhost" || is_loopback(host); }

Socket listen_at(const std::string& host, int port) {
  if (host.empty()) {
    Socket both = make_socket(AF_INET6);
    sockaddr_in6 any6{};
    any6.sin6_family = AF_INET6;
    any6.sin6_port = htons(static_cast<std::uint16_t>(port));
    if (both.open()) set_option(both.fd(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (both.open() && listen_on(both, reinterpret_cast<sockaddr*>(&any6), sizeof(any6))) return both;
    if (both.open() && errno == EADDRINUSE) return Socket();
    Socket ipv4 = make_socket(AF_INET);  // a machine without IPv6
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_port = htons(static_cast<std::uint16_t>(port));
    if (ipv4.open() && listen_on(ipv4, reinterpret_cast<sockaddr*>(&any), sizeof(any))) return ipv4;
    return Socket();
  }
  std::string why;
  const Addresses found = addresses_of(host, port, AI_PASSIVE, why);
  errno = EADDRNOTAVAIL;
  for (const addrinfo* each = found.get(); each != nullptr; each = each->ai_next) {
    Socket socket = make_socket(each->ai_family);
    if (socket.open() && listen_on(socket, each->ai_addr, each->ai_addrlen)) return socket;
    if (errno == EADDRINUSE) return Socket();
  }
  return Socket();
}

Socket connect_to(const Endpoint& endpoint, Clock::time_point until, std::string& why) {
  const Addresses found = addresses_of(endpoint.host, endpoint.port, 0, why);
  for (const addrinfo* each = found.get(); each != nullptr; each = each->ai_next) {
    Socket socket = make_socket(each->ai_family);
    if (!socket.open()) {
      why = std::strerror(errno);
      continue;
    }
    int error = connect(socket.fd(), each->ai_addr, each->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      pollfd ready{socket.fd(), POLLOUT, 0};
      socklen_t length = sizeof(error);
      if (poll(&ready, 1, milliseconds_until(until)) <= 0)
        error = ETIMEDOUT;
      else
        getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
    }
    if (error == 0) return socket;
    why = std::strerror(error);
  }
  return Socket();
}

void prepare(const Socket& socket) {
  const int fd = socket.fd();
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 15);  // seconds, as the next
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 30'000);  // milliseconds without an answer from the other kernel
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

int milliseconds_until(Clock::time_point time) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(time - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000));
}

bool read_all(const Socket& socket, void* data, std::size_t bytes, Clock::time_point until) {
  for (std::size_t at = 0; at < bytes;) {
    const ssize_t got = recv(socket.fd(), static_cast<char*>(data) + at, bytes - at, MSG_DONTWAIT);
    if (got > 0) {
      at += static_cast<std::size_t>(got);
      continue;
    }
    if (got == 0 || (errno != EAGAIN && errno != EINTR)) return false;
    pollfd ready{socket.fd(), POLLIN, 0};
    if (poll(&ready, 1, milliseconds_until(until)) == 0 && Clock::now() >= until) return false;
  }
  return true;
}

bool write_all(const Socket& socket, const void* data, std::size_t bytes, Clock::time_point until) {
  for (std::size_t at = 0; at < bytes;) {
    const ssize_t put = send(socket.fd(), static_cast<const char*>(data) + at, bytes - at, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put > 0) {
      at += static_cast<std::size_t>(put);
      continue;
    }
    if (errno != EAGAIN && errno != EINTR) return false;
    pollfd ready{socket.fd(), POLLOUT, 0};
    if (poll(&ready, 1, milliseconds_until(until)) == 0 && Clock::now() >= until) return false;
  }
  return true;
}

}  // namespace weft
