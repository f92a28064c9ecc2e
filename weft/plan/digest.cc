#include "weft/plan/digest.h"

namespace weft {

namespace {

// FNV-1a over words, with the high bits folded back in, so that every word affects all bits.
class Digest {
 public:
  void add(std::int64_t word) {
    state_ = (state_ ^ static_cast<std::uint64_t>(word)) * 0x100000001b3ULL;
    state_ ^= state_ >> 32;
  }
  void add(const std::string& text) {
    add(static_cast<std::int64_t>(text.size()));
    for (char c : text) add(static_cast<std::int64_t>(c));
  }
  std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = 0xcbf29ce484222325ULL;
};

}  // namespace

std::uint64_t digest_of(const Plan& plan) {
  Digest d;
  d.add(static_cast<std::int64_t>(plan.kind));
  d.add(plan.micro_batches);
  for (const ValueInfo& v : plan.values) {
    d.add(v.name);
    for (std::int64_t word :
         {static_cast<std::int64_t>(v.storage), static_cast<std::int64_t>(v.dtype), v.bytes, v.first_summed_row,
          std::int64_t{v.counts.value}, std::int64_t{v.summed_over.value}, std::int64_t{v.replicas.value},
          std::int64_t{v.exchanged_over.value}, std::int64_t{v.norm_row}, std::int64_t{v.tensor.value},
          std::int64_t{v.given_by_host}, std::int64_t{v.read_by_host}, std::int64_t{v.running}, std::int64_t{v.part}})
      d.add(word);
    for (int dim = 0; dim < v.shape.dims(); ++dim) d.add(v.shape[dim]);
    for (const ValueInfo::RowSum& sum : v.further_sums) {
      d.add(sum.over.value);
      d.add(sum.first);
    }
  }
  for (const PlaceInfo& place : plan.places) {
    d.add(place.name);
    d.add(place.unit);
    d.add(place.phases);
    d.add(static_cast<std::int64_t>(place.section));
    d.add(place.depth);
  }
  for (const std::string& group : plan.groups) d.add(group);
  for (const Buffer& b : plan.buffers)
    for (std::int32_t word : {b.value.value, b.micro_batch, b.contributions, b.instance}) d.add(word);
  for (const Node& node : plan.nodes) {
    for (std::int32_t word : {static_cast<std::int32_t>(node.kind), static_cast<std::int32_t>(node.phase),
                              static_cast<std::int32_t>(node.lane), node.place.value, node.piece.value, node.part,
                              node.micro_batch, node.uses, node.collectives, static_cast<std::int32_t>(node.carried)})
      d.add(word);
    for (const BufferUse& use : plan.uses_of(node))
      for (std::int32_t word : {use.buffer.value, static_cast<std::int32_t>(use.access), use.contribution}) d.add(word);
    for (const NodeCollective& c : plan.collectives_of(node)) {
      for (std::int32_t word :
           {static_cast<std::int32_t>(c.kind), c.group.value, c.send.value, c.receive.value, c.send_counts.value,
            c.receive_counts.value, c.host_send_counts.value, c.host_receive_counts.value, c.peer, c.match.value})
        d.add(word);
      d.add(c.first_row);
      d.add(c.end_row);
    }
  }
  return d.value();
}

}  // namespace weft
