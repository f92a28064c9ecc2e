// arrange_rows: rows received by source and expert, put in the order of expert and source. copy_choices: to several ranks.
#include "weft/device/argument_checks.h"
#include "weft/device/cpu/kernels/dispatch.h"
#include "weft/device/operations/rows.h"

namespace weft::WEFT_ISA {

void arrange_rows(Stream&, const ArrangeRows& op) {
  constexpr const char* name = "arrange_rows";
  check_arguments(name, op);
  const std::int64_t sources = op.source_counts.shape[0], experts = op.source_counts.shape[1];
  const std::int32_t* from = op.source_counts.as<std::int32_t>();
  std::int32_t* received_of_row = op.received_of_row.as<std::int32_t>();
  std::int32_t* row_of_received = op.row_of_received.as<std::int32_t>();

  std::int64_t row = 0, all = 0;
  for (std::int64_t i = 0; i < sources * experts; ++i) all += from[i];
  require(all <= op.row_of_received.shape.elements(), name, "more rows were received than there is room for");
  for (std::int64_t e = 0; e < experts; ++e) {
    op.offsets.as<std::int32_t>()[e] = static_cast<std::int32_t>(row);
    const std::int64_t first = row;
    std::int64_t before = 0;  // received rows of earlier sources
    for (std::int64_t s = 0; s < sources; ++s) {
      const std::int32_t* counts = from + s * experts;
      std::int64_t at = before;
      for (std::int64_t i = 0; i < e; ++i) at += counts[i];
      for (std::int32_t i = 0; i < counts[e]; ++i, ++at, ++row) {
        require(row < op.received_of_row.shape.elements(), name, "more rows than received_of_row has");
        received_of_row[row] = static_cast<std::int32_t>(at);
        row_of_received[at] = static_cast<std::int32_t>(row);
      }
      for (std::int64_t i = 0; i < experts; ++i) before += counts[i];
    }
    op.counts.as<std::int32_t>()[e] = static_cast<std::int32_t>(row - first);
    const std::int64_t end = (row + op.alignment - 1) / op.alignment * op.alignment;
    require(end <= op.received_of_row.shape.elements(), name, "more rows than received_of_row has");
    for (; row < end; ++row) received_of_row[row] = -1;
  }
  op.offsets.as<std::int32_t>()[experts] = static_cast<std::int32_t>(row);
  *op.rows_in_use.as<std::int32_t>() = static_cast<std::int32_t>(row);
  *op.received_in_use.as<std::int32_t>() = static_cast<std::int32_t>(all);
}

void copy_choices(Stream& stream, const CopyChoices& op) {
  check_arguments("copy_choices", op);
  const std::int32_t* indices = op.indices.as<std::int32_t>();
  std::int32_t* y = op.y.as<std::int32_t>();
  split_elements(stream, op.indices.shape.elements(), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t x = indices[i];
      for (std::int64_t c = 0; c < op.copies; ++c)
        y[i * op.copies + c] =
            static_cast<std::int32_t>(x < 0 ? x : (x / op.each * op.copies + c) * op.each + x % op.each);
    }
  });
}

}  // namespace weft::WEFT_ISA
