# src/kernels/instantiations.cmake
# Which kernels are compiled: one source file for each line and head_dim, made in the build tree. A new head_dim or dtype is a
# word here, and a row in the backend's entries.
#
# Where KEYHOLE_CUDA_OLDEST_ONLY is on, nothing will run: each line is one file, because headers then take most of the time, and
# has every head_dim in its last dtype, but the other dtypes in its first head_dim alone. What is left out throws.
#
# Names of a line: the folder and the header that define the function template, the function, its
# parameters, the head_dims (of an indexer: the index heads; of the pairs of an index loss: the heads of a tile), what else is
# a template argument (_: nothing), and the dtypes, if they are not f16 and bf16.
set(keyhole_instantiations
    "mma  gather_forward.cuh   launch_gather_forward   forward_lists   64,96,128,192,256  _"
    "mma  gather_backward.cuh  launch_gather_backward  backward_lists  64,96,128,192,256  _"
    "mma  gather_weights.cuh   launch_gather_weights   span_lists      64,96,128,192,256  _"
    "sm80 forward.cuh          run_forward             forward         64,96,128,192,256  _"
    "sm80 backward.cuh         run_backward            backward        64,96,128,192,256  _"
    "sm80 entmax_scan.cuh      run_entmax_forward      forward         64,128             _                         f32,f16,bf16"
    "sm80 index_loss_pairs.cuh launch_index_loss_pairs loss_pairs      32,128             LossResult::loss"
    "sm80 index_loss_pairs.cuh launch_index_loss_pairs loss_pairs      32,128             LossResult::gradients bf16"
    "sm80 index_loss_dq.cuh    launch_index_loss_dq    loss_dq         64,128,256         _                     bf16"
    "sm90 forward.cuh          run_forward             forward         64,96,128,192,256  Bend::none,Bend::softcap"
    "sm90 backward.cuh         run_backward            backward        64,96,128          Bend::none,Bend::softcap"
    "sm90 wide_backward.cuh    run_wide_backward       backward        192,256            Bend::none,Bend::softcap"
    "sm90 entmax_scan.cuh      run_entmax_forward      forward         64,128             _                         f32,f16,bf16"
    "sm90 entmax_backward.cuh  run_entmax_backward     backward        64,128             _"
    "sm90 index_scores.cuh     run_index_scores        scores          16,32,64           _                         e4m3,f16,bf16")

set(keyhole_parameters_forward "const ForwardArgs&")
set(keyhole_parameters_backward "const BackwardArgs&")
set(keyhole_parameters_scores "const ScoreArgs&")
set(keyhole_parameters_loss_pairs "const LossPairs&, cudaStream_t")
set(keyhole_parameters_loss_dq "const LossPairs&, const device::DeviceTensor&, cudaStream_t")
set(keyhole_parameters_forward_lists "const device::GatherForwardParams&, cudaStream_t")
set(keyhole_parameters_backward_lists "const device::BackwardParams&, const GatherView&, cudaStream_t")
set(keyhole_parameters_span_lists
    "const device::BackwardParams&, const GatherView&, const device::SpanLists&, cudaStream_t")

# keyhole_instantiate(FOLDER RESULT): writes the sources of a folder and gives their names.
function(keyhole_instantiate folder result)
  set(sources "")
  set(left_out "")
  foreach(line IN LISTS keyhole_instantiations)
    separate_arguments(words UNIX_COMMAND "${line}")
    list(GET words 0 line_folder)
    if(NOT line_folder STREQUAL folder)
      continue()
    endif()
    list(GET words 1 header)
    list(GET words 2 function)
    list(GET words 3 parameters)
    list(GET words 4 head_dims)
    list(GET words 5 others)
    set(dtypes f16 bf16)
    list(LENGTH words num_words)
    if(num_words GREATER 6)
      list(GET words 6 dtypes)
      string(REPLACE "," ";" dtypes "${dtypes}")
    endif()
    set(files "${head_dims}")
    string(REPLACE "," ";" all_head_dims "${head_dims}")
    list(GET all_head_dims 0 first_head_dim)
    list(GET dtypes -1 last_dtype)
    if(NOT KEYHOLE_CUDA_OLDEST_ONLY)
      set(files "${all_head_dims}")
    endif()
    string(REPLACE "," ";" others "${others}")
    get_filename_component(name "${header}" NAME_WE)
    foreach(file IN LISTS files)
      string(REPLACE "," "_" dims_in_name "${file}")
      string(REPLACE "," ";" head_dims "${file}")
      foreach(other IN LISTS others)
        set(suffix "")
        set(argument "")
        if(NOT other STREQUAL "_")
          string(REGEX REPLACE ".*::" "_" suffix "${other}")
          set(argument ", ${other}")
        endif()
        set(text "// Made by src/kernels/instantiations.cmake.\n#include \"kernels/${folder}/${header}\"\n\n")
        string(APPEND text "namespace keyhole::${folder} {\n")
        foreach(head_dim IN LISTS head_dims)
          foreach(dtype IN LISTS dtypes)
            set(kernel "void ${function}<DType::${dtype}, ${head_dim}${argument}>(${keyhole_parameters_${parameters}})")
            if(KEYHOLE_CUDA_OLDEST_ONLY AND NOT head_dim EQUAL first_head_dim AND NOT dtype STREQUAL last_dtype)
              string(APPEND left_out "template <>\n${kernel} {\n  not_compiled();\n}\n")
              continue()
            endif()
            string(APPEND text "template ${kernel};\n")
          endforeach()
        endforeach()
        string(APPEND text "}  // namespace keyhole::${folder}\n")
        set(source "${CMAKE_CURRENT_BINARY_DIR}/kernels/${folder}/${name}_d${dims_in_name}${suffix}.cu")
        file(CONFIGURE OUTPUT "${source}" CONTENT "${text}" @ONLY)
        list(APPEND sources "${source}")
      endforeach()
    endforeach()
  endforeach()
  if(left_out)
    file(GLOB launch_headers RELATIVE "${PROJECT_SOURCE_DIR}/src" CONFIGURE_DEPENDS
         "${PROJECT_SOURCE_DIR}/src/kernels/${folder}/*_launch.h")
    set(text "// Made by src/kernels/instantiations.cmake.\n")
    foreach(header IN LISTS launch_headers)
      string(APPEND text "#include \"${header}\"\n")
    endforeach()
    string(APPEND text "#include \"kernels/not_compiled.h\"\n\n"
                       "namespace keyhole::${folder} {\n${left_out}}  // namespace keyhole::${folder}\n")
    set(source "${CMAKE_CURRENT_BINARY_DIR}/kernels/${folder}/left_out.cpp")
    file(CONFIGURE OUTPUT "${source}" CONTENT "${text}" @ONLY)
    target_sources(keyhole_cuda_host PRIVATE "${source}")
  endif()
  set(${result} "${sources}" PARENT_SCOPE)
endfunction()
