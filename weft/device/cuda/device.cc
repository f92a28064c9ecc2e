#include "weft/device/cuda/device.h"

#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/device/cuda/check.h"
#include "weft/device/cuda/graph.h"
#include "weft/device/cuda/kernels/reduction.h"
#include "weft/device/cuda/stream.h"
#include "weft/device/cuda/table.h"
#include "weft/device/cuda/working_memory.h"
#include "weft/device/cuda_device.h"

namespace weft {

namespace cuda {

namespace {

class CudaMemory : public Memory {
 public:
  CudaMemory(std::byte* data, std::size_t bytes) : data_(data), bytes_(bytes) {}
  ~CudaMemory() override { cudaFree(data_); }
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;
  std::byte* data() const override { return data_; }
  std::size_t bytes() const override { return bytes_; }

 private:
  std::byte* data_;
  std::size_t bytes_;
};

class PinnedMemory : public Memory {
 public:
  explicit PinnedMemory(std::size_t bytes) : bytes_(bytes) {
    check_cuda(cudaMallocHost(&data_, std::max<std::size_t>(bytes, 1)), "allocating memory of the host");
  }
  ~PinnedMemory() override { cudaFreeHost(data_); }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  std::byte* data() const override { return static_cast<std::byte*>(data_); }
  std::size_t bytes() const override { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

class CudaEvent : public Event {
 public:
  CudaEvent() { check_cuda(cudaEventCreate(&event_), "making an event"); }
  ~CudaEvent() override { cudaEventDestroy(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  void record(Stream& stream) override {
    check_cuda(cudaEventRecord(event_, cuda_stream(stream).handle()), "recording an event");
  }
  void wait_on(Stream& stream) override {
    check_cuda(cudaStreamWaitEvent(cuda_stream(stream).handle(), event_, 0), "waiting for an event");
  }
  bool done() const override {
    const cudaError_t state = cudaEventQuery(event_);
    if (state == cudaErrorNotReady) return false;
    check_cuda(state, "asking for an event");
    return true;
  }
  double seconds_since(const Event& earlier) const override {
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, static_cast<const CudaEvent&>(earlier).event_, event_),
               "timing between events");
    return static_cast<double>(milliseconds) * 1e-3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// Lets kernels of this GPU read the memory of others, where the machine can do that.
void open_peers(int index) {
  int count = 0;
  check_cuda(cudaGetDeviceCount(&count), "counting GPUs");
  for (int peer = 0; peer < count; ++peer) {
    int can = 0;
    if (peer == index || cudaDeviceCanAccessPeer(&can, index, peer) != cudaSuccess || can == 0) continue;
    const cudaError_t opened = cudaDeviceEnablePeerAccess(peer, 0);
    if (opened == cudaErrorPeerAccessAlreadyEnabled)
      cudaGetLastError();  // by another CudaDevice of this process
    else
      check_cuda(opened, "opening the memory of another GPU");
  }
}

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

}  // namespace

CudaDevice::CudaDevice(int index) : index_(index) {
  bind_thread();
  cudaDeviceProp properties = {};
  check_cuda(cudaGetDeviceProperties(&properties, index), "asking for a GPU's properties");
  cudaFuncAttributes attributes = {};
  if (cudaFuncGetAttributes(&attributes, any_kernel()) != cudaSuccess) {
    cudaGetLastError();
    throw UserError(
        "`device` cuda: {} has compute capability {}.{}, for which this weft was not compiled: build with "
        "-DWEFT_CUDA_ARCHITECTURES={}{}, or use `device` cpu",
        properties.name, properties.major, properties.minor, properties.major, properties.minor);
  }
  name_ = fmt::format("cuda ({})", properties.name);
  char bus[32] = {};
  check_cuda(cudaDeviceGetPCIBusId(bus, sizeof(bus), index), "asking for a GPU's place on the bus");
  identity_ = bus;
  open_peers(index);
  gpu_ = {properties.multiProcessorCount, attributes.ptxVersion >= 90};
  blas_ = std::make_unique<Blas>();
  attention_ = make_fused_attention();
  fill_table(operations_);
}

std::unique_ptr<Stream> CudaDevice::make_stream(int) {
  return std::make_unique<CudaStream>(*blas_, attention_.get(), gpu_, CudaStream::Kind::usual);
}
std::unique_ptr<Stream> CudaDevice::make_urgent_stream() {
  return std::make_unique<CudaStream>(*blas_, attention_.get(), gpu_, CudaStream::Kind::urgent);
}
std::unique_ptr<Event> CudaDevice::make_event() { return std::make_unique<CudaEvent>(); }

std::unique_ptr<Memory> CudaDevice::allocate(std::size_t bytes) {
  void* data = nullptr;
  const cudaError_t result = cudaMalloc(&data, std::max<std::size_t>(bytes, 1));
  if (result == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // not an error of what follows
    throw RunError("cannot allocate {} of GPU memory: {} are free", human_bytes(static_cast<double>(bytes)),
                   human_bytes(static_cast<double>(free_bytes())));
  }
  check_cuda(result, "allocating GPU memory");
  return std::make_unique<CudaMemory>(static_cast<std::byte*>(data), bytes);
}

std::size_t CudaDevice::free_bytes() const {
  std::size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "asking for free GPU memory");
  return free;
}

std::unique_ptr<Memory> CudaDevice::allocate_host(std::size_t bytes) { return std::make_unique<PinnedMemory>(bytes); }

WorkingMemory CudaDevice::working_memory(const std::function<void(const Operations&, Stream&)>& queue) {
  return working_memory_of(*blas_, attention_.get(), gpu_, queue);
}

// Measured on an H200 with CUDA 13 (docs/gpu_speed.md).
std::size_t CudaDevice::library_bytes() const { return std::size_t{40} << 20; }

std::unique_ptr<Graph> CudaDevice::capture(Stream& stream, const std::function<void()>& queue) {
  return std::make_unique<CudaGraph>(cuda_stream(stream).handle(), queue);
}

void CudaDevice::copy_in(Stream& stream, void* device, const void* host, std::size_t bytes) {
  if (bytes == 0) return;
  check_cuda(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, cuda_stream(stream).handle()),
             "copying to the GPU");
}

void CudaDevice::copy_out(Stream& stream, void* host, const void* device, std::size_t bytes) {
  if (bytes == 0) return;
  check_cuda(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, cuda_stream(stream).handle()),
             "copying from the GPU");
}

void CudaDevice::copy(Stream& stream, void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cuda_stream(stream).handle()), "copying between GPUs");
}

void CudaDevice::require_access(const void* memory) const {
  cudaPointerAttributes at = {};
  check_cuda(cudaPointerGetAttributes(&at, memory), "asking whose memory it is");
  int can = 0;
  if (at.device == index_ || (cudaDeviceCanAccessPeer(&can, index_, at.device) == cudaSuccess && can != 0)) return;
  throw RunError("GPU {} cannot read the memory of GPU {}: run ranks on them as processes, over NCCL", index_,
                 at.device);
}

void CudaDevice::reduce(Stream& stream, Reduction reduction, DType dtype, void* out,
                        std::span<const std::byte* const> inputs, std::int64_t count) {
  if (count == 0) return;
  for (const std::byte* input : inputs) require_access(input);
  reduce_in_order(cuda_stream(stream), reduction, dtype, out, inputs, count);
}

void CudaDevice::bind_thread() { check_cuda(cudaSetDevice(index_), "choosing a GPU"); }

}  // namespace cuda

std::unique_ptr<Device> make_cuda_device(int index) {
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found != cudaSuccess || count == 0) {
    cudaGetLastError();
    throw UserError("`device` cuda: this machine shows no GPU to CUDA {} ({}); use `device` cpu",
                    cuda::version_text(CUDART_VERSION), cudaGetErrorString(found));
  }
  if (index >= count)
    throw UserError("`device` cuda: rank {} of this machine needs a GPU of its own, and there are only {}", index,
                    count);
  return std::make_unique<cuda::CudaDevice>(index);
}

CudaReport cuda_report() {
  CudaReport report;
  report.built_with = "CUDA " + cuda::version_text(CUDART_VERSION);
  int driver = 0, count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0)
    report.driver = "CUDA " + cuda::version_text(driver);
  else
    report.driver = cudaGetErrorString(found);
  if (found != cudaSuccess) {
    cudaGetLastError();
    return report;
  }
  report.blas = cuda::blas_version();
  report.cudnn = cuda::cudnn_version();
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp p = {};
    if (cudaGetDeviceProperties(&p, i) != cudaSuccess) continue;
    CudaReport::Gpu gpu{p.name, fmt::format("{}.{}", p.major, p.minor), p.totalGlobalMem, 0, p.multiProcessorCount};
    std::size_t total = 0;
    if (cudaSetDevice(i) == cudaSuccess) cudaMemGetInfo(&gpu.free_bytes, &total);
    report.gpus.push_back(gpu);
  }
  return report;
}

}  // namespace weft
