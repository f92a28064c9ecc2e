// Nodes without arithmetic: what they send and receive, which counts they use, what they wait for and release.
#include <algorithm>
#include <map>

#include "weft/plan/check/faults.h"

namespace weft {

namespace {

class CollectiveCheck {
 public:
  CollectiveCheck(const Plan& plan, FaultList& faults)
      : plan_(plan),
        faults_(faults),
        exchanged_(plan.collectives.empty() ? 0 : plan.buffers.size()),
        copy_of_(exchanged_.size()) {}

  void run() {
    for (std::size_t i = 0; i < plan_.nodes.size(); ++i) {
      self_ = node_id(i);
      check_kind(plan_.nodes[i]);
      for (const NodeCollective& c : plan_.collectives_of(plan_.nodes[i])) check(plan_.nodes[i], c);
    }
  }

 private:
  void check_kind(const Node& node) {
    const auto fault = [&](const std::string& what) { faults_.add({self_}, what); };
    if (node.kind == NodeKind::communicate) {
      if (node.collectives == 0) fault("communicates, but has no collectives");
      if (!lane_communicates(node.lane))
        fault(fmt::format("communicates on lane {}, which computes", name_of(node.lane)));
    } else if (node.collectives > 0) {
      fault(fmt::format("communicates, but its kind is {}", name_of(node.kind)));
    }
    if ((node.kind == NodeKind::compute) != (node.piece.valid() && node.collectives == 0))
      fault(node.piece.valid() ? fmt::format("has a piece, but its kind is {}", name_of(node.kind))
                               : "computes, but has no piece");
    if (node.kind == NodeKind::accumulate) check_accumulate(node);
    if (node.phase == Phase::reduce && node.kind != NodeKind::accumulate) {
      const auto collectives = plan_.collectives_of(node);
      for (const BufferUse& use : plan_.uses_of(node))
        if (use.access != Access::read && std::none_of(collectives.begin(), collectives.end(),
                                                       [&](const auto& c) { return c.receive == use.buffer; }))
          fault(fmt::format("{} is written by a reduction that does not communicate it", plan_.name_of(use.buffer)));
    }
    if (node.kind == NodeKind::wait_counts) check_wait(node);
    if (node.kind == NodeKind::release)
      for (const BufferUse& use : plan_.uses_of(node))
        if (use.access != Access::write || plan_.value_of(use.buffer).storage != StorageClass::gathered)
          fault(fmt::format("releases {}, which is not a gathered parameter", plan_.name_of(use.buffer)));
    if (node.kind == NodeKind::sum_of_squares) check_squares(node);
  }

  // The first half of its uses reads counts; the second half writes their copies, in the same order.
  void check_wait(const Node& node) {
    const auto uses = plan_.uses_of(node);
    const std::size_t half = uses.size() / 2;
    for (std::size_t i = 0; i < half; ++i) {
      const BufferId counts = uses[i].buffer, copy = uses[half + i].buffer;
      if (plan_.value_of(counts).dtype != DType::i32 || plan_.value_of(copy).storage != StorageClass::host ||
          uses[i].access != Access::read || uses[half + i].access != Access::write)
        faults_.add({self_}, fmt::format("{} is not a copy of counts {} on the host", plan_.name_of(copy),
                                         plan_.name_of(counts)));
      else if (counts.index() < copy_of_.size())
        copy_of_[counts.index()] = copy;
    }
    if (half == 0 || uses.size() % 2 != 0) faults_.add({self_}, "waits for counts, but names none or no copies");
  }

  // Pairs of uses: a sum over ranks, and the part of a gradient that it is added to.
  void check_accumulate(const Node& node) {
    const auto uses = plan_.uses_of(node);
    for (std::size_t i = 0; i + 1 < uses.size(); i += 2) {
      const ValueInfo &sum = plan_.value_of(uses[i].buffer), &kept = plan_.value_of(uses[i + 1].buffer);
      if (uses[i].access != Access::read || uses[i + 1].access != Access::add || sum.part == 0 ||
          kept.part != sum.part || sum.tensor != kept.tensor || !(sum.shape == kept.shape))
        faults_.add({self_}, fmt::format("{} is not a sum that belongs to {}", sum.name, kept.name));
    }
    if (uses.empty() || uses.size() % 2 != 0) faults_.add({self_}, "adds sums, but names none or not where to");
  }

  void check_squares(const Node& node) {
    const auto uses = plan_.uses_of(node);
    if (uses.empty() || uses.back().access != Access::write) {
      faults_.add({self_}, "sums squares, but writes no sum");
      return;
    }
    const std::int64_t rows = plan_.value_of(uses.back().buffer).shape.elements();
    for (const BufferUse& use : uses.first(uses.size() - 1))
      if (const ValueInfo& value = plan_.value_of(use.buffer);
          value.storage != StorageClass::gradient || value.norm_row < 0 || value.norm_row >= rows)
        faults_.add({self_},
                    fmt::format("{} has no row in {}", plan_.name_of(use.buffer), plan_.name_of(uses.back().buffer)));
  }

  void fault(const NodeCollective& c, const std::string& what) {
    const BufferId buffer = c.send.valid() ? c.send : c.receive;
    faults_.add({self_}, buffer.valid() ? fmt::format("{} of {}: {}", name_of(c.kind), plan_.name_of(buffer), what)
                                        : fmt::format("{}: {}", name_of(c.kind), what));
  }
  bool uses(const Node& node, BufferId buffer, bool writes) const {
    const auto list = plan_.uses_of(node);
    return std::any_of(list.begin(), list.end(), [&](const BufferUse& use) {
      return use.buffer == buffer && (!writes || use.access != Access::read);
    });
  }

  void check(const Node& node, const NodeCollective& c) {
    if (c.send.valid() && !uses(node, c.send, false)) fault(c, "the node does not use what it sends");
    if (c.receive.valid() && !uses(node, c.receive, true))
      fault(c, fmt::format("the node does not declare that it writes {}", plan_.name_of(c.receive)));
    if (c.send.valid() && c.receive.valid() && plan_.value_of(c.send).dtype != plan_.value_of(c.receive).dtype)
      fault(c, fmt::format("{} has a different type", plan_.name_of(c.receive)));
    switch (c.kind) {
      case CollectiveKind::all_to_all:
        check_exchange(node, c);
        break;
      case CollectiveKind::all_reduce:
        check_all_reduce(c);
        check_further_sums(node, c);
        break;
      case CollectiveKind::all_gather:
        check_parts(c, c.send, c.receive);
        check_tensor(c, c.send, c.receive);
        break;
      case CollectiveKind::reduce_scatter:
        check_parts(c, c.receive, c.send);
        check_tensor(c, c.receive, c.send);
        check_sum(c, plan_.value_of(c.receive));
        break;
      case CollectiveKind::broadcast:
        if (c.send != c.receive) fault(c, fmt::format("it is in place, but also names {}", plan_.name_of(c.receive)));
        if (c.peer < 0) fault(c, "has no root");
        break;
      case CollectiveKind::send:
      case CollectiveKind::receive:
        check_transfer(c);
        check_direction(node, c);
        break;
      case CollectiveKind::to_next:
      case CollectiveKind::to_previous:
        check_turn(c);
        break;
      case CollectiveKind::barrier:
        break;
    }
  }

  // What is sent must still be there when the other rank's arrives.
  void check_turn(const NodeCollective& c) {
    const ValueInfo &send = plan_.value_of(c.send), &receive = plan_.value_of(c.receive);
    if (!(send.shape == receive.shape)) fault(c, fmt::format("{} has a different shape", plan_.name_of(c.receive)));
    if (c.send == c.receive) fault(c, "it cannot receive into what it sends");
  }

  void check_all_reduce(const NodeCollective& c) {
    const ValueInfo &send = plan_.value_of(c.send), &receive = plan_.value_of(c.receive);
    if (!(send.shape == receive.shape)) fault(c, fmt::format("{} has a different shape", plan_.name_of(c.receive)));
    if (c.first_row < 0 || (c.first_row > 0 && c.first_row >= send.shape[0]))
      fault(c, fmt::format("begins at row {} of {}", c.first_row, to_text(send.shape)));
    if (c.end_row < 0 || (c.end_row > 0 && (c.end_row <= c.first_row || c.end_row >= send.shape[0])))
      fault(c, fmt::format("ends before row {} of {}", c.end_row, to_text(send.shape)));
    check_sum(c, receive);
  }

  // Where rows are summed over several groups, one node has all these sums.
  void check_further_sums(const Node& node, const NodeCollective& c) {
    const auto all = plan_.collectives_of(node);
    for (const ValueInfo::RowSum& sum : plan_.value_of(c.receive).further_sums)
      if (std::none_of(all.begin(), all.end(), [&](const NodeCollective& other) {
            return other.receive == c.receive && other.group == sum.over && other.first_row == sum.first;
          }))
        fault(c, fmt::format("rows from {} on are not summed over '{}'", sum.first, plan_.name_of(sum.over)));
  }

  // The group and the rows that are summed must be those that the value declares.
  void check_sum(const NodeCollective& c, const ValueInfo& receive) {
    const auto& further = receive.further_sums;
    if (!receive.summed_over.valid()) {
      fault(c, fmt::format("each rank has its own {}", plan_.name_of(c.receive)));
    } else if (std::any_of(further.begin(), further.end(), [&](const ValueInfo::RowSum& sum) {
                 return sum.over == c.group && sum.first == c.first_row;
               })) {
      return;
    } else if (c.group != receive.summed_over || c.first_row != receive.first_summed_row) {
      fault(c, fmt::format("runs over '{}' from row {}, but {} is summed over '{}' from row {}", plan_.name_of(c.group),
                           c.first_row, plan_.name_of(c.receive), plan_.name_of(receive.summed_over),
                           receive.first_summed_row));
    }
  }

  // A part goes to or comes from the tensor that it is a part of; together the parts must hold all of it.
  void check_tensor(const NodeCollective& c, BufferId part, BufferId whole) {
    const ValueInfo &one = plan_.value_of(part), &all = plan_.value_of(whole);
    if (one.part == 0 && all.storage != StorageClass::gathered && all.storage != StorageClass::partial) return;
    if (all.exchanged_over.valid() && all.exchanged_over != c.group)
      fault(c, fmt::format("runs over '{}', but {} is divided over '{}'", plan_.name_of(c.group), plan_.name_of(whole),
                           plan_.name_of(all.exchanged_over)));
    const bool gathers = c.kind == CollectiveKind::all_gather;
    if (one.tensor != all.tensor || one.part <= all.part || !(gathers ? is_weight(one) : is_gradient(one)))
      fault(c, fmt::format("{} is not a part of {}", plan_.name_of(part), plan_.name_of(whole)));
    if (all.bytes < all.shape.elements() * static_cast<std::int64_t>(size_of(all.dtype)))
      fault(c, fmt::format("its parts do not hold all of {} {}", plan_.name_of(whole), to_text(all.shape)));
  }

  static bool is_weight(const ValueInfo& value) {
    return value.storage == StorageClass::weight || value.storage == StorageClass::gathered;
  }
  // Or a sum on its way to one.
  static bool is_gradient(const ValueInfo& value) {
    return value.storage == StorageClass::gradient || value.storage == StorageClass::partial ||
           value.storage == StorageClass::activation;
  }

  // `whole` must consist of equal parts, one per rank.
  void check_parts(const NodeCollective& c, BufferId part, BufferId whole) {
    const std::int64_t one = elements_of(plan_.value_of(part)), all = elements_of(plan_.value_of(whole));
    if (one < 1 || all % one != 0)
      fault(c, fmt::format("{} {} does not consist of parts like {} {}", plan_.name_of(whole),
                           to_text(plan_.value_of(whole).shape), plan_.name_of(part),
                           to_text(plan_.value_of(part).shape)));
  }

  // Of the lanes between stages, each has one direction.
  void check_direction(const Node& node, const NodeCollective& c) {
    const bool in = node.lane == Lane::pipe_in || node.lane == Lane::back_in,
               out = node.lane == Lane::pipe_out || node.lane == Lane::back_out;
    if (c.kind == CollectiveKind::send ? in : out)
      fault(c, fmt::format("lane {} only {}", name_of(node.lane), in ? "receives" : "sends"));
  }

  void check_transfer(const NodeCollective& c) {
    if (c.peer < 0 || !c.match.valid()) return fault(c, "names no peer or no match");
    const auto [at, is_new] = transfers_.try_emplace({c.kind, c.group, c.peer, c.match}, self_);
    if (!is_new)
      faults_.add({self_, at->second},
                  fmt::format("match {} is used by two transfers between the same ranks", c.match.value));
  }

  void check_exchange(const Node& node, const NodeCollective& c) {
    const ValueInfo &send = plan_.value_of(c.send), &receive = plan_.value_of(c.receive);
    for (const ValueInfo* rows : {&send, &receive})
      if (rows->exchanged_over.valid() && rows->exchanged_over != c.group)
        fault(c, fmt::format("runs over '{}', but {} is exchanged over '{}'", plan_.name_of(c.group), rows->name,
                             plan_.name_of(rows->exchanged_over)));
    if (!c.send_counts.valid() && !c.receive_counts.valid()) {
      if (send.counts.valid() || receive.counts.valid())
        fault(c, "has equal parts, but its rows are laid out by counts");
      exchanged_[c.send.index()] = {c.receive, c.group};
      return;
    }
    if (!c.send_counts.valid() || !c.receive_counts.valid()) return fault(c, "has counts of one side only");
    for (BufferId counts : {c.send_counts, c.receive_counts})
      if (!uses(node, counts, false)) fault(c, fmt::format("the node does not read {}", plan_.name_of(counts)));
    for (const auto& [rows, counts] : {std::pair(c.send, c.send_counts), std::pair(c.receive, c.receive_counts)})
      if (plan_.value_of(rows).counts != plan_.buffers[counts.index()].value)
        fault(c, fmt::format("the rows of {} are not laid out by {}", plan_.name_of(rows), plan_.name_of(counts)));
    const auto came = [&](BufferId from, BufferId to) {
      return exchanged_[from.index()].with == to && exchanged_[from.index()].group == c.group;
    };
    if (!came(c.send_counts, c.receive_counts) && !came(c.receive_counts, c.send_counts))
      fault(c, fmt::format("uses {} and {}, which were not exchanged over {}", plan_.name_of(c.send_counts),
                           plan_.name_of(c.receive_counts), plan_.name_of(c.group)));
    for (const auto& [copy, counts] :
         {std::pair(c.host_send_counts, c.send_counts), std::pair(c.host_receive_counts, c.receive_counts)}) {
      if (!copy.valid()) continue;
      if (!uses(node, copy, false)) fault(c, fmt::format("the node does not read {}", plan_.name_of(copy)));
      if (copy_of_[counts.index()] != copy)
        fault(c, fmt::format("the host has not waited for {}", plan_.name_of(counts)));
    }
    if (c.host_send_counts.valid() != c.host_receive_counts.valid()) fault(c, "the host knows counts of one side only");
  }

  struct Exchanged {
    BufferId with;
    GroupId group;
  };
  using Transfer = std::tuple<CollectiveKind, GroupId, std::int32_t, MatchId>;
  const Plan& plan_;
  FaultList& faults_;
  NodeId self_;
  std::vector<Exchanged> exchanged_;  // by buffer of counts: where an exchange has put the peers' counts
  std::vector<BufferId> copy_of_;     // by buffer of counts: its copy on the host, once a wait has written it
  std::map<Transfer, NodeId> transfers_;
};

}  // namespace

void check_collectives(const Plan& plan, FaultList& faults) { CollectiveCheck(plan, faults).run(); }

}  // namespace weft
