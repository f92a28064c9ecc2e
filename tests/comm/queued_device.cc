#include "tests/comm/queued_device.h"

#include <atomic>
#include <cstring>
#include <vector>

namespace weft {

namespace {

QueuedStream& queued(Stream& stream) { return static_cast<QueuedStream&>(stream); }

class QueuedEvent : public Event {
 public:
  void record(Stream& stream) override {
    const auto point = std::make_shared<std::atomic<bool>>(false);
    {
      const std::lock_guard lock(mutex_);
      point_ = point;
    }
    queued(stream).push([point] {
      point->store(true);
      point->notify_all();
    });
  }
  void wait_on(Stream& stream) override {
    if (const auto point = recorded()) queued(stream).push([point] { point->wait(false); });
  }
  bool done() const override {
    const auto point = recorded();
    return !point || point->load();
  }

 private:
  std::shared_ptr<std::atomic<bool>> recorded() const {
    const std::lock_guard lock(mutex_);
    return point_;
  }
  mutable std::mutex mutex_;
  std::shared_ptr<std::atomic<bool>> point_;
};

class HostMemory : public Memory {
 public:
  explicit HostMemory(std::size_t bytes) : bytes_(bytes), data_(new std::byte[bytes]) {}
  std::byte* data() const override { return data_.get(); }
  std::size_t bytes() const override { return bytes_; }

 private:
  std::size_t bytes_;
  std::unique_ptr<std::byte[]> data_;
};

using Recorded = std::vector<std::function<void()>>;
thread_local Recorded* recording = nullptr;  // if set, work that this thread queues goes here instead

class QueuedGraph : public Graph {
 public:
  explicit QueuedGraph(const std::function<void()>& queue) {
    recording = &work_;
    try {
      queue();
    } catch (...) {
      recording = nullptr;
      throw;
    }
    recording = nullptr;
  }
  void launch(Stream& stream) override {
    for (const auto& work : work_) queued(stream).push(work);
  }

 private:
  Recorded work_;
};

void queue_copy(Stream& stream, void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) queued(stream).push([=] { std::memmove(to, from, bytes); });
}

}  // namespace

QueuedStream::QueuedStream() {
  thread_ = std::thread([this] {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const std::function<void()> work = queue_.front();
      lock.unlock();
      work();
      lock.lock();
      queue_.pop_front();
      changed_.notify_all();
    }
  });
}

QueuedStream::~QueuedStream() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void QueuedStream::synchronize() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return queue_.empty(); });
}

void QueuedStream::push(std::function<void()> work) {
  if (recording) {
    recording->push_back(std::move(work));
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
  }
  changed_.notify_all();
}

std::unique_ptr<Event> QueuedDevice::make_event() { return std::make_unique<QueuedEvent>(); }
std::unique_ptr<Memory> QueuedDevice::allocate(std::size_t bytes) { return std::make_unique<HostMemory>(bytes); }

std::unique_ptr<Graph> QueuedDevice::capture(Stream&, const std::function<void()>& queue) {
  return std::make_unique<QueuedGraph>(queue);
}

void QueuedDevice::copy_in(Stream& stream, void* device, const void* host, std::size_t bytes) {
  queue_copy(stream, device, host, bytes);
}
void QueuedDevice::copy_out(Stream& stream, void* host, const void* device, std::size_t bytes) {
  queue_copy(stream, host, device, bytes);
}
void QueuedDevice::copy(Stream& stream, void* to, const void* from, std::size_t bytes) {
  queue_copy(stream, to, from, bytes);
}

void QueuedDevice::reduce(Stream& stream, Reduction reduction, DType dtype, void* out,
                          std::span<const std::byte* const> inputs, std::int64_t count) {
  queued(stream).push([=, list = std::vector(inputs.begin(), inputs.end())] {
    reduce_in_rank_order(reduction, dtype, static_cast<std::byte*>(out), list, count);
  });
}

}  // namespace weft
