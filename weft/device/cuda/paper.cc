#include "weft/device/cuda/paper.h"

#include <type_traits>

#include "weft/device/cuda/table.h"

namespace weft::cuda {

namespace {

class PaperStream : public CudaStream {
 public:
  PaperStream(Blas& blas, FusedAttention* attention, const Gpu& gpu)
      : CudaStream(blas, attention, gpu, Kind::on_paper) {}
  WorkingMemory need;
};

template <class Arguments>
void note(Stream& stream, const Arguments& op, void (*operation)(Stream&, const Arguments&)) {
  WorkingMemory& need = static_cast<PaperStream&>(stream).need;
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

WorkingMemory need_on_paper(Blas& blas, FusedAttention* attention, const Gpu& gpu,
                            const std::function<void(const Operations&, Stream&)>& queue) {
  const Operations table = make_table();
  PaperStream stream(blas, attention, gpu);
  queue(table, stream);
  return stream.need;
}

}  // namespace weft::cuda
