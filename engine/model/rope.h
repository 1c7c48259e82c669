#pragma once

#include <cstddef>
#include <vector>

#include "engine/model/json_fields.h"
#include "engine/model/spec.h"
#include "parallel/graph.h"

namespace lockstep::engine {

/// Rotary embedding as Hugging Face configurations state it: rope_theta beside rope_scaling (transformers 4, where {} is as good as null),
/// or rope_parameters (5), `kind` of them where there are several ("full_attention"). @throws what names the key: an unknown type, missing
/// or contradicting values.
RopeSpec rope_from_config(const JsonFields& fields, std::size_t head_dim, std::size_t max_positions, const char* kind = nullptr);

/// The part of a head that is rotated. @throws what names partial_rotary_factor if that is nothing, or an odd number of dims.
std::size_t rotary_dim_of(const JsonFields& fields, std::size_t head_dim, double part);

/// [r / 2]: what llama3 scaling divides the plain frequencies by. The tensor rope_freqs of GGUF files holds these numbers, so a folder and
/// a file of one model have the same table.
std::vector<float> llama3_divisors(const RopeSpec& rope);

/// Frequencies, factors and all. @throws std::runtime_error if the values make no sense together.
parallel::Rotary rotary_of(const RopeSpec& rope);

}  // namespace lockstep::engine
