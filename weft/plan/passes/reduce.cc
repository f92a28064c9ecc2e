#include "weft/plan/passes/reduce.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

namespace weft {

namespace {

class Reductions {
 public:
  Reductions(const Plan& plan, const Module& module) : module_(module), plan_(plan) {
    buffers_.resize(plan.values.size());
    for (std::size_t i = 0; i < plan.buffers.size(); ++i)
      if (plan.buffers[i].micro_batch < 0)
        buffers_[plan.buffers[i].value.index()] = BufferId(static_cast<std::int64_t>(i));
  }

  Plan run() {
    if (has_phase(plan_.kind, Phase::reduce)) {
      sum_losses();
      if (plan_.kind == PlanKind::train) sum_gradients();
      if (plan_.kind == PlanKind::train && module_.squares.valid()) sum_squares();
      const auto first_update = std::find_if(plan_.nodes.begin(), plan_.nodes.end(),
                                             [](const Node& node) { return node.phase == Phase::update; });
      plan_.nodes.insert(first_update, made_.begin(), made_.end());
    }
    return std::move(plan_);
  }

 private:
  // Sums the values that are summed over ranks, in place, in one node.
  void sum_over_ranks(PlaceId place, const std::vector<ValueId>& values, Lane lane = Lane::reduce) {
    std::vector<StageSum> in_place;
    for (ValueId value : values) in_place.push_back({value, value});
    sum_into(place, in_place, lane);
  }
  // The sums of the first values of each pair go into the second.
  void sum_into(PlaceId place, const std::vector<StageSum>& sums, Lane lane) {
    std::vector<BufferUse> used;
    std::vector<NodeCollective> communication;
    for (const StageSum& sum : sums) {
      const ValueInfo& info = plan_.values[sum.all.index()];
      NodeCollective c{CollectiveKind::all_reduce, info.summed_over, buffer_of(sum.here), buffer_of(sum.all)};
      c.bytes = info.bytes;
      c.first_row = info.first_summed_row;
      if (c.send != c.receive) used.push_back({c.send});
      used.push_back({c.receive, Access::write});
      communication.push_back(c);
      for (const ValueInfo::RowSum& further : info.further_sums) {
        communication.back().end_row = further.first;
        c.group = further.over;
        c.first_row = further.first;
        communication.push_back(c);
      }
    }
    made_.push_back(plan_.make_node(NodeKind::communicate, Phase::reduce, lane, place, -1, used, communication));
  }
  BufferId buffer_of(ValueId value) {
    BufferId& buffer = buffers_[value.index()];
    if (!buffer.valid()) buffer = plan_.add_buffer(value);
    return buffer;
  }
  bool is_summed(ValueId value) const {
    return value.valid() && buffers_[value.index()].valid() && plan_.values[value.index()].summed_over.valid();
  }

  void sum_losses() {
    std::vector<ValueId> losses{module_.loss};
    losses.insert(losses.end(), module_.mtp_losses.begin(), module_.mtp_losses.end());
    losses.insert(losses.end(), {module_.router_losses, module_.indexer_loss});
    for (const StageSum& sum : module_.stage_sums) {
      std::erase(losses, sum.all);
      losses.push_back(sum.here);
    }
    std::erase_if(losses, [&](ValueId value) { return !is_summed(value); });
    if (!losses.empty()) sum_over_ranks(plan_.add_place(0, "step", "loss"), losses);
    std::vector<StageSum> sums = module_.stage_sums;
    if (plan_.kind == PlanKind::evaluate)  // which does not compute these
      std::erase_if(sums, [&](const StageSum& sum) {
        return sum.all == module_.router_losses || sum.all == module_.indexer_loss;
      });
    if (!sums.empty()) sum_into(plan_.add_place(0, "step", "loss_of_all_stages"), sums, Lane::stage_sums);
  }

  // A group of ranks of the first and the last stage: all that hold a tensor, or those that hold one part of it.
  bool on_both_ends(GroupId replicas) const {
    const Layout& layout = module_.layout;
    return layout.stage_count() > 1 && (replicas == layout.both_ends() || replicas == layout.embedding_stages());
  }

  void sum_gradients() {
    const std::vector<int> units = units_of_tensors(module_);
    std::map<int, std::vector<ValueId>, std::greater<>> of_unit;
    std::vector<ValueId> of_both_ends;  // by the same node on both stages
    for (std::size_t i = 0; i < units.size(); ++i) {
      if (!is_summed(module_.gradient_values[i])) continue;
      (on_both_ends(module_.parameters[i].placement.replicas) ? of_both_ends : of_unit[units[i]])
          .push_back(module_.gradient_values[i]);
    }
    for (auto& [unit, gradients] : of_unit) {
      // One group after the other, so that a communicator's calls stay together.
      std::stable_sort(gradients.begin(), gradients.end(), [&](ValueId a, ValueId b) {
        return plan_.values[a.index()].summed_over < plan_.values[b.index()].summed_over;
      });
      sum_over_ranks(plan_.add_place(unit, fmt::format("unit.{}", unit), "gradients"), gradients);
    }
    if (!of_both_ends.empty())
      sum_over_ranks(plan_.add_place(0, "both_ends", "gradients"), of_both_ends, Lane::stage_sums);
  }

  // Rows of the sum: gradients that are whole on every rank, then those that each group divides.
  void sum_squares() {
    std::vector<BufferUse> used;
    const ValueId squares = module_.squares;
    const BufferId sum = buffer_of(squares);
    const NormRows rows = norm_rows(module_);
    for (std::size_t i = 0; i < module_.parameters.size(); ++i)
      if (const ValueId gradient = module_.gradient_values[i]; gradient.valid())
        plan_.values[gradient.index()].norm_row = rows.row_of[i];
    for (std::size_t row = 0; row < rows.groups.size(); ++row)
      for (std::size_t i = 0; i < module_.parameters.size(); ++i) {
        if (rows.row_of[i] != static_cast<std::int32_t>(row)) continue;
        used.push_back({buffers_[module_.gradient_values[i].index()]});
      }
    used.push_back({sum, Access::write});
    made_.push_back(plan_.make_node(NodeKind::sum_of_squares, Phase::update, Lane::compute,
                                    plan_.add_place(0, "step", "norm"), -1, used));
    if (rows.groups.size() > 1) {
      ValueInfo& info = plan_.values[squares.index()];
      info.summed_over = rows.groups[1];
      info.first_summed_row = 1;
      for (std::size_t row = 2; row < rows.groups.size(); ++row)
        info.further_sums.push_back({rows.groups[row], static_cast<std::int64_t>(row)});
      sum_over_ranks(plan_.add_place(0, "step", "squares"), {squares});
    }
    if (module_.all_squares != squares) {
      plan_.values[module_.all_squares.index()].summed_over = module_.layout.stages();
      sum_into(plan_.add_place(0, "step", "squares_of_all_stages"), {{squares, module_.all_squares}}, Lane::stage_sums);
    }
  }

  const Module& module_;
  Plan plan_;
  std::vector<BufferId> buffers_;  // of the step, by value
  std::vector<Node> made_;
};

}  // namespace

Plan reduce(const Plan& plan, const Module& module) { return Reductions(plan, module).run(); }

}  // namespace weft
