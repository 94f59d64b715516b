/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Functions of cuDNN that a remote GPU cannot have. NVIDIA's library, which the program brings, has
 * them, but would dereference the back end's handles and descriptors. They return cuDNN's "not
 * supported" and log their name once. Functions that only return texts and versions are left to
 * that library.
 */
#include "frontend-glue/preload/preload.h"

#include "common/log.h"

/* The prototypes are in the library's header. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

#define NOT_SUPPORTED 3000 /* CUDNN_STATUS_NOT_SUPPORTED */

static int absent(const char *call, atomic_flag *told)
{
    if (!atomic_flag_test_and_set(told))
        ibx_log(IBX_LOG_WARN,
                "%s returns CUDNN_STATUS_NOT_SUPPORTED: it is not there for a remote GPU; "
                "ibx-gvirtus(1) lists what is",
                call);
    return NOT_SUPPORTED;
}

#define ABSENT(call)                                                                               \
    __attribute__((visibility("default"))) int call(void)                                          \
    {                                                                                              \
        static atomic_flag told = ATOMIC_FLAG_INIT;                                                \
        return absent(#call, &told);                                                               \
    }

ABSENT(cudnnBackendInitialize)
ABSENT(cudnnBackendPopulateCudaGraph)
ABSENT(cudnnBackendUpdateCudaGraph)
ABSENT(cudnnBuildRNNDynamic)
ABSENT(cudnnCTCLoss)
ABSENT(cudnnCTCLoss_v8)
ABSENT(cudnnCreateAttnDescriptor)
ABSENT(cudnnCreateCTCLossDescriptor)
ABSENT(cudnnCreateFusedOpsConstParamPack)
ABSENT(cudnnCreateFusedOpsPlan)
ABSENT(cudnnCreateFusedOpsVariantParamPack)
ABSENT(cudnnCreateLRNDescriptor)
ABSENT(cudnnCreateOpTensorDescriptor)
ABSENT(cudnnCreateReduceTensorDescriptor)
ABSENT(cudnnCreateSeqDataDescriptor)
ABSENT(cudnnCreateTensorTransformDescriptor)
ABSENT(cudnnDeriveNormTensorDescriptor)
ABSENT(cudnnDestroyAttnDescriptor)
ABSENT(cudnnDestroyCTCLossDescriptor)
ABSENT(cudnnDestroyFusedOpsConstParamPack)
ABSENT(cudnnDestroyFusedOpsPlan)
ABSENT(cudnnDestroyFusedOpsVariantParamPack)
ABSENT(cudnnDestroyLRNDescriptor)
ABSENT(cudnnDestroyOpTensorDescriptor)
ABSENT(cudnnDestroyReduceTensorDescriptor)
ABSENT(cudnnDestroySeqDataDescriptor)
ABSENT(cudnnDestroyTensorTransformDescriptor)
ABSENT(cudnnDivisiveNormalizationBackward)
ABSENT(cudnnDivisiveNormalizationForward)
ABSENT(cudnnFindConvolutionBackwardDataAlgorithm)
ABSENT(cudnnFindConvolutionBackwardFilterAlgorithm)
ABSENT(cudnnFindConvolutionForwardAlgorithm)
ABSENT(cudnnFusedOpsExecute)
ABSENT(cudnnGetActivationDescriptor)
ABSENT(cudnnGetActivationDescriptorSwishBeta)
ABSENT(cudnnGetAttnDescriptor)
ABSENT(cudnnGetBackdoor)
ABSENT(cudnnGetCTCLossDescriptor)
ABSENT(cudnnGetCTCLossDescriptorEx)
ABSENT(cudnnGetCTCLossDescriptor_v8)
ABSENT(cudnnGetCTCLossDescriptor_v9)
ABSENT(cudnnGetCTCLossWorkspaceSize)
ABSENT(cudnnGetCTCLossWorkspaceSize_v8)
ABSENT(cudnnGetCallback)
ABSENT(cudnnGetConvolution2dDescriptor)
ABSENT(cudnnGetConvolutionBackwardDataAlgorithmMaxCount)
ABSENT(cudnnGetConvolutionBackwardFilterAlgorithmMaxCount)
ABSENT(cudnnGetConvolutionForwardAlgorithmMaxCount)
ABSENT(cudnnGetConvolutionGroupCount)
ABSENT(cudnnGetConvolutionMathType)
ABSENT(cudnnGetConvolutionNdDescriptor)
ABSENT(cudnnGetConvolutionNdForwardOutputDim)
ABSENT(cudnnGetConvolutionReorderType)
ABSENT(cudnnGetDropoutDescriptor)
ABSENT(cudnnGetFilter4dDescriptor)
ABSENT(cudnnGetFilterSizeInBytes)
ABSENT(cudnnGetFoldedConvBackwardDataDescriptors)
ABSENT(cudnnGetFusedOpsConstParamPackAttribute)
ABSENT(cudnnGetFusedOpsVariantParamPackAttribute)
ABSENT(cudnnGetLRNDescriptor)
ABSENT(cudnnGetMultiHeadAttnBuffers)
ABSENT(cudnnGetMultiHeadAttnWeights)
ABSENT(cudnnGetNormalizationBackwardWorkspaceSize)
ABSENT(cudnnGetNormalizationForwardTrainingWorkspaceSize)
ABSENT(cudnnGetNormalizationTrainingReserveSpaceSize)
ABSENT(cudnnGetOpTensorDescriptor)
ABSENT(cudnnGetPooling2dDescriptor)
ABSENT(cudnnGetPooling2dForwardOutputDim)
ABSENT(cudnnGetPoolingNdDescriptor)
ABSENT(cudnnGetPoolingNdForwardOutputDim)
ABSENT(cudnnGetRNNDataDescriptor)
ABSENT(cudnnGetRNNDescriptor_v8)
ABSENT(cudnnGetRNNDropoutLocationsInternal)
ABSENT(cudnnGetReduceTensorDescriptor)
ABSENT(cudnnGetReductionIndicesSize)
ABSENT(cudnnGetReductionWorkspaceSize)
ABSENT(cudnnGetSeqDataDescriptor)
ABSENT(cudnnGetTensor4dDescriptor)
ABSENT(cudnnGetTensorTransformDescriptor)
ABSENT(cudnnIm2Col)
ABSENT(cudnnInitTransformDest)
ABSENT(cudnnLRNCrossChannelBackward)
ABSENT(cudnnLRNCrossChannelForward)
ABSENT(cudnnMakeFusedOpsPlan)
ABSENT(cudnnMultiHeadAttnBackwardData)
ABSENT(cudnnMultiHeadAttnBackwardWeights)
ABSENT(cudnnMultiHeadAttnForward)
ABSENT(cudnnNormalizationBackward)
ABSENT(cudnnNormalizationForwardInference)
ABSENT(cudnnNormalizationForwardTraining)
ABSENT(cudnnOpTensor)
ABSENT(cudnnQueryRuntimeError)
ABSENT(cudnnRNNGetClip_v8)
ABSENT(cudnnRNNGetClip_v9)
ABSENT(cudnnRNNSetClip_v8)
ABSENT(cudnnRNNSetClip_v9)
ABSENT(cudnnReduceTensor)
ABSENT(cudnnReorderFilterAndBias)
ABSENT(cudnnSetActivationDescriptorSwishBeta)
ABSENT(cudnnSetAttnDescriptor)
ABSENT(cudnnSetBackdoor)
ABSENT(cudnnSetBackdoorEx)
ABSENT(cudnnSetCTCLossDescriptor)
ABSENT(cudnnSetCTCLossDescriptorEx)
ABSENT(cudnnSetCTCLossDescriptor_v8)
ABSENT(cudnnSetCTCLossDescriptor_v9)
ABSENT(cudnnSetCallback)
ABSENT(cudnnSetFusedOpsConstParamPackAttribute)
ABSENT(cudnnSetFusedOpsVariantParamPackAttribute)
ABSENT(cudnnSetLRNDescriptor)
ABSENT(cudnnSetOpTensorDescriptor)
ABSENT(cudnnSetReduceTensorDescriptor)
ABSENT(cudnnSetSeqDataDescriptor)
ABSENT(cudnnSetTensorTransformDescriptor)
ABSENT(cudnnTransformFilter)
ABSENT(cudnnTransformTensorEx)
