// Moves the messages of all groups of this process over one connection per other rank: a thread reads all connections,
// and writes what could not be written at once.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "weft/comm/sigterm.h"
#include "weft/comm/tcp/incoming.h"
#include "weft/comm/tcp/outgoing.h"
#include "weft/comm/tcp/posted.h"
#include "weft/comm/tcp/socket.h"

namespace weft {

class TcpEngine {
 public:
  struct Events {  // called by the engine's thread
    std::function<void(int rank, std::uint32_t kind, const std::string& text)> control;
    std::function<void(int rank, const std::string& why)> lost;  // the connection is closed
    std::function<void()> sigterm;
    std::function<void(const std::string& why)> failed;  // the engine itself
  };

  // `peers`: a connected socket for each other rank, as returned by connect_ranks. sigterm: watch only where the signal is
  // blocked in every thread of the process.
  TcpEngine(std::vector<Socket> peers, Sigterm sigterm, Events events);
  ~TcpEngine();
  void start();
  void stop();  // after writing pending control messages, or soon

  // Called by any thread, as everything below.
  void send_control(int rank, std::uint32_t kind, std::shared_ptr<const std::string> text);
  void post(Posted& message);  // adds it to its batch
  void abandon(Posted& message);

  // Until all messages of the batch are complete, one has the wrong size, `ended` is set or the time is up.
  void wait(PostedBatch& batch, double seconds, const std::atomic<bool>& ended);
  void wake_waits();  // so that they check `ended`
  void add(PostedBatch& batch);
  void remove(PostedBatch& batch);
  std::mutex& mutex() { return mutex_; }  // guards batches and Posted::done

 private:
  struct Connection {
    Socket socket;
    std::unique_ptr<Incoming> incoming;
    std::unique_ptr<Outgoing> outgoing;
    bool closed = false;  // used by the thread alone
  };

  void open_connection(int rank, Socket socket);
  void work();
  void handle_event(std::uint64_t which, std::uint32_t events);
  void read(int rank);
  bool control_written();

  std::mutex mutex_;
  std::set<PostedBatch*> batches_;
  std::vector<Connection> connections_;
  Events events_;
  Socket poll_, wake_, signals_;
  std::atomic<bool> stop_{false};
  std::vector<std::byte> staging_;
  std::thread thread_;
};

}  // namespace weft
