#include "weft/device/cuda/working_memory.h"

#include <type_traits>

#include "weft/device/cuda/table.h"

namespace weft::cuda {

namespace {

class MeasuringStream : public CudaStream {
 public:
  MeasuringStream(Blas& blas, FusedAttention* attention, const Gpu& gpu)
      : CudaStream(blas, attention, gpu, Kind::measures) {}
  WorkingMemory need;
};

template <class Arguments>
void note(Stream& stream, const Arguments& op, void (*operation)(Stream&, const Arguments&)) {
  WorkingMemory& need = static_cast<MeasuringStream&>(stream).need;
  if (std::is_same_v<Arguments, Matmul>) need.products = CudaStream::workspace_bytes;
  try {
    operation(stream, op);
  } catch (const ScratchAsked& asked) {
    need.grow_to({CudaStream::rounded(asked.bytes), 0});
  }
}

Operations make_table() {
  Operations table;
#define WEFT_NOTE(name, Arguments) \
  table.name = [](Stream& stream, const Arguments& op) { note(stream, op, &cuda::name); };
  WEFT_OPERATIONS(WEFT_NOTE)
#undef WEFT_NOTE
  return table;
}

}  // namespace

WorkingMemory working_memory_of(Blas& blas, FusedAttention* attention, const Gpu& gpu,
                                const std::function<void(const Operations&, Stream&)>& queue) {
  const Operations table = make_table();
  MeasuringStream stream(blas, attention, gpu);
  queue(table, stream);
  return stream.need;
}

}  // namespace weft::cuda
