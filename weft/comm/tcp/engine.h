// Moves the messages of all groups of this process, over one connection to each other rank: a thread reads them all,
// and writes what did not go at once.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "weft/comm/tcp/incoming.h"
#include "weft/comm/tcp/outgoing.h"
#include "weft/comm/tcp/posted.h"
#include "weft/comm/tcp/socket.h"

namespace weft {

class TcpEngine {
 public:
  struct Events {  // by the engine's thread
    std::function<void(int rank, std::uint32_t word, const std::string& text)> word;
    std::function<void(int rank, const std::string& why)> lost;  // the connection is over
    std::function<void()> sigterm;
    std::function<void(const std::string& why)> failed;  // the engine itself
  };
  enum class Sigterm : unsigned char { watch, leave };  // watch: it is blocked in every thread of the process

  // `peers`: a connected socket for each other rank, as connect_ranks gives them.
  TcpEngine(std::vector<Socket> peers, Sigterm sigterm, Events events);
  ~TcpEngine();
  void start();
  void stop();  // when what was told is written, or soon

  // By any thread, as all below.
  void tell(int rank, std::uint32_t word, std::shared_ptr<const std::string> text);
  void post(Posted& message);  // counts it into its batch
  void abandon(Posted& message);

  // Until all messages of the batch are complete, one did not fit, `ended` is set or so many seconds are past.
  void wait(PostedBatch& batch, double seconds, const std::atomic<bool>& ended);
  void wake_waits();  // to look at `ended`
  void add(PostedBatch& batch);
  void remove(PostedBatch& batch);
  std::mutex& mutex() { return mutex_; }  // of batches, and of whether messages are done

 private:
  struct Link {
    Socket socket;
    std::unique_ptr<Incoming> incoming;
    std::unique_ptr<Outgoing> outgoing;
    bool over = false;  // the thread's own
  };

  void open_link(int rank, Socket socket);
  void work();
  void look_after(std::uint64_t which, std::uint32_t events);
  void read(int rank);
  bool words_written();

  std::mutex mutex_;
  std::set<PostedBatch*> batches_;
  std::vector<Link> links_;
  Events events_;
  Socket poll_, wake_, signals_;
  std::atomic<bool> stop_{false};
  std::vector<std::byte> staging_;
  std::thread thread_;
};

}  // namespace weft
