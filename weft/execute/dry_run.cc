#include "weft/execute/dry_run.h"

#include <cmath>

#include "weft/device/operations.h"

namespace weft {

namespace {

class Dry : public Run {
 public:
  Dry(const Module& module, const Operations& operations, Stream& stream, const DryRun& how)
      : module_(module), how_(how) {
    operations_ = &operations;
    stream_ = &stream;
  }
  Tensor operator[](ValueId value) const override {
    const Value& v = module_.value(value);
    if (v.in_use == 1 || how_.rows == DryRun::Rows::all) return Tensor(nullptr, v.dtype, v.shape);
    Shape used{static_cast<std::int64_t>(std::ceil(v.in_use * static_cast<double>(v.shape[0])))};
    for (int dim = 1; dim < v.shape.dims(); ++dim) used.append(v.shape[dim]);
    return Tensor(nullptr, v.dtype, used);
  }
  Store store(ValueId) const override { return how_.store; }

 private:
  const Module& module_;
  DryRun how_;
};

}  // namespace

void dry_run(const Module& module, const Piece& piece, Phase phase, const Operations& operations, Stream& stream,
             const DryRun& how) {
  const PieceCode& code = piece.code(phase);
  if (code.run) code.run(Dry(module, operations, stream, how));  // communication costs nothing here
}

}  // namespace weft
